"""Text that others wrote, as it may reach a terminal."""

from __future__ import annotations

from harness.records.legible_text import spelt_out

_LONGEST = 600
_BEGINNING = 400


def shortened(message: str) -> str:
    """A message without the middle of what it echoes, where that is long: its rule and its way out stay."""
    if len(message) <= _LONGEST:
        return message
    ending = message[_BEGINNING - _LONGEST :]
    return f"{message[:_BEGINNING]} … {len(message) - _LONGEST:,} characters more … {ending}"


def plain(text: str) -> str:
    """Make text safe for a terminal: one line, no control characters that move the cursor or colour it."""
    return " ".join(spelt_out(text).split())
