"""Foreign text made safe to show: control characters escaped, secrets removed, logs shortened.

Letters of all scripts stay, and the two joiners of Persian, Indian scripts and emoji. All other characters
that are not printable are escaped: control characters, direction marks, which can reorder a sentence,
characters without width, and halves of surrogate pairs.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeGuard

from harness.records.contained_files import opened_inside

_JOINERS = "\u200c\u200d"
_SPACE = re.compile(r"[^\S\x1c-\x1f\x85]")


def printable(text: str) -> str:
    """Text on one line, with plain spaces, and escapes for other characters that are not printable."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in _JOINERS else _spelt(letter)
        for letter in _SPACE.sub(" ", text)
    )


def cut(text: str, *, most: int) -> str:
    """Text with its middle replaced by the number of removed characters, if it is too long."""
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
    """Message without the middle of a long quoted value; rule and instruction stay."""
    if len(message) <= _LONGEST:
        return message
    ending = message[_BEGINNING - _LONGEST :]
    return f"{message[:_BEGINNING]} … {len(message) - _LONGEST:,} characters more … {ending}"


def plain(text: str) -> str:
    """Make text safe for a terminal: one line, no control characters that move the cursor or colour it."""
    return " ".join(printable(text).split())


REDACTED = "[redacted]"

_NAMES = (
    r"(?:token|secret|password|passwd|pwd|passphrase|api[-_]?key|access[-_]?key|account[-_]?key|"
    r"private[-_]?key|credentials?|signature|sig|authorization)"
)
# A search must take time linear in the text. So nothing optional follows a repetition without limit: where
# one begins, there is a match, and no search starts there again.
_VALUE = r"(?:\"[^\"\n]*\"?|'[^'\n]*'?|[^\s,;&\"'}\])]+)"
_NAMED = re.compile(
    rf"({_NAMES}[\"']?[ \t]{{0,3}}[=:][ \t]{{0,3}})"
    rf"(?!\[redacted\])(?:(?:bearer|basic|digest)[ \t]{{1,3}})?(?:\[[^\]\n]*\]?|{_VALUE})",
    re.IGNORECASE,
)
_OPTION = re.compile(
    rf"(?<![^\s\"'\[(,=])(-{{1,2}}(?:[a-z0-9]{{1,40}}[-_.]){{0,6}}{_NAMES}"
    rf"(?:[\"'],[ \t]{{0,3}}|[ \t]{{1,3}}))"
    rf"(?!-|\[redacted\]){_VALUE}",
    re.IGNORECASE,
)
_SIGNED_IN = re.compile(r"(://)[^/\s\"']{1,512}@")
_BEARER = re.compile(r"\b(bearer[ \t]{1,3})[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_FORMS = re.compile(
    r"\b(?:gh[opsur]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{20,}"
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,}|sk-[A-Za-z0-9_-]{20,}|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|AIza[A-Za-z0-9_-]{30,}|eyJ[A-Za-z0-9_-]{8,1024}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?)"
)
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)", re.DOTALL
)
_OPTION_NAME = re.compile(rf"{_NAMES}$", re.IGNORECASE)


def redacted(text: str) -> str:
    """Text without anything that looks like a secret."""
    text = _PRIVATE_KEY.sub(REDACTED, text)
    text = _SIGNED_IN.sub(rf"\1{REDACTED}@", text)
    text = _NAMED.sub(rf"\1{REDACTED}", text)
    text = _OPTION.sub(rf"\1{REDACTED}", text)
    text = _BEARER.sub(rf"\1{REDACTED}", text)
    return _FORMS.sub(REDACTED, text)


def redacted_document(value: object, *, name: str = "") -> object:
    """Mappings, sequences and scalars without anything that looks like a secret, by its form or its name."""
    if isinstance(value, Mapping):
        return {str(key): redacted_document(item, name=str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        # Words of a command are named by the option before them.
        before = ["", *(item if _is_option(item) else "" for item in value)]
        return [
            redacted_document(item, name=name if str(item).startswith("-") else option or name)
            for option, item in zip(before, value, strict=False)
        ]
    if isinstance(value, str):
        return REDACTED if value and _OPTION_NAME.search(name) else redacted(value)
    return value


def redacted_command(words: Sequence[str]) -> str:
    """Command line for a shell, without anything that looks like a secret."""
    redacted_words: list[str] = []
    before = ""
    for word in words:
        is_value = _is_option(before)
        redacted_words.append(REDACTED if is_value else redacted(word))
        before = word
    return shlex.join(redacted_words)


def _is_option(word: object) -> TypeGuard[str]:
    return isinstance(word, str) and word.startswith("-") and _OPTION_NAME.search(word) is not None


MOST_LETTERS = 300
"""Longest line; a longer one loses its middle."""
_MOST_BYTES = 1 << 16


def log_tail(folder: Path, *names: str, n_lines: int) -> tuple[str, ...]:
    """Read the last lines of a log, without blank ones.

    Args:
        folder: folder that contains it, at `names`.
    Raises:
        StoreError: it is no file of that folder. OSError: it cannot be read.
    """
    with opened_inside(folder, *names) as file:
        start = max(0, os.fstat(file).st_size - _MOST_BYTES)
        data = os.pread(file, _MOST_BYTES, start)
    # The first line may be incomplete, so that a secret in it would not be recognised.
    data = data.partition(b"\n")[2] if start and b"\n" in data else data
    lines = redacted(data.decode(errors="replace")).splitlines()
    return tuple(_safe_line(line) for line in [line for line in lines if line.strip()][-n_lines:])


def _safe_line(line: str) -> str:
    return printable(cut(line, most=MOST_LETTERS).expandtabs(4).rstrip())
