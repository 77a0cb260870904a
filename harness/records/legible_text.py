"""Text that others wrote, fit for any medium: nothing moves a cursor, turns text round or is unseen.

Letters of every script stay, and so do the two joiners that Persian, scripts of India and emoji are written
with. All else that is not printable is spelt out: control characters, marks of direction, which can show a
sentence in another order than it has, characters without width, halves of surrogate pairs.
"""

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
