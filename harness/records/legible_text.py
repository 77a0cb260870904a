"""Text that others wrote, fit for any medium: nothing moves a cursor, turns text round or is unseen."""

from __future__ import annotations

import re

_JOINERS = "\u200c\u200d"
_SPACE = re.compile(r"[^\S\x1c-\x1f\x85]")


def spelt_out(text: str) -> str:
    """Text on one line: every space a plain one, other characters that are not printable as escapes."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in _JOINERS else _spelt(letter)
        for letter in _SPACE.sub(" ", text)
    )


def cut(text: str, *, most: int) -> str:
    """Text without its middle, where it is longer than so many characters; how long that is, is said."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} … {len(text) - 2 * half:,} characters more … {text[-half:]}"


def _spelt(letter: str) -> str:
    number = ord(letter)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


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
