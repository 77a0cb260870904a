"""Text that others wrote, as it may reach a terminal."""

from __future__ import annotations


def plain(text: str) -> str:
    """Make text safe for a terminal: one line, no control characters that move the cursor or colour it."""
    words = " ".join(text.split())
    return "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in words)
