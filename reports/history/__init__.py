"""History of nightly runs: series, their changes, and the trend page."""

CONFIRM = 3
"""Nights that a change must last; `--help` shows it, so importing this module costs nothing."""
