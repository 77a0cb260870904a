"""History of nightly runs: series, their changes, and the trend page."""
