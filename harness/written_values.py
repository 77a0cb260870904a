"""Formats of values that people write: times, shares, rates, names, paths and scalars."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path

Scalar = None | bool | int | float | str

_DURATION = re.compile(r"(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?")
_UNITS_MBIT = {"kbit": 0.001, "mbit": 1.0, "gbit": 1000.0}
_SAFE_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_WORDS: dict[str, Scalar] = {"true": True, "false": False, "null": None}


def parse_duration_s(text: str) -> float | None:
    """Read `90s`, `30m` or `1h30m`; None if it is none of these."""
    text = text.strip().lower()
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(hours * 3600 + minutes * 60 + seconds) or None


def parse_share(text: str) -> float | None:
    """Read `3%` or `0.03`; None for anything else, also for an ambiguous 1 without a sign."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]+)?)\s*(%?)", text.strip())
    if match is None:
        return None
    value = float(match[1])
    return value / 100 if match[2] else value if value < 1 else None


HIGHEST_MBIT = 1e9
"""Highest rate of a link, in a prediction."""


def parse_rate_mbit(text: str) -> float | None:
    """Read `100mbit` or `1gbit`; None for anything else, also for a number without a unit."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*([a-z]*)", text.strip().lower())
    unit = None if match is None else _UNITS_MBIT.get(match[2])
    return None if match is None or unit is None else float(match[1]) * unit


def n_of_workers(n: int) -> str:
    """Number of workers in words."""
    return f"{n} worker{'' if n == 1 else 's'}"


def kebab(name: str) -> str:
    """Format a name as in records: `wide_mlp` and `wide-mlp` are the same."""
    return name.strip().lower().replace("_", "-")


def home_expanded(path: str) -> str:
    """Path with `~` replaced by the home directory, which a shell does not replace in lists and files."""
    try:
        return str(Path(path).expanduser()) if path.startswith("~") else path
    except RuntimeError:
        return path  # no user has that name


def parse_scalar(text: str) -> Scalar:
    """Read a value from the command line: true, false, null, a whole number, a number, or text.

    Text in double quotes is JSON, so that the text `"true"` can be given.
    """
    text = text.strip()
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if text.startswith('"'):
        try:
            quoted = json.loads(text)
        except ValueError:
            return text
        return quoted if isinstance(quoted, str) else text
    if re.fullmatch(r"[+-]?\d{1,300}", text):
        return int(text)
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text) and math.isfinite(float(text)):
        return float(text)
    return text


def scalar_text(value: Scalar) -> str:
    """Format a value so that `parse_scalar` reads the same value of the same type again."""
    if isinstance(value, str):
        plain = _SAFE_TEXT.fullmatch(value) and value.lower() not in _WORDS
        # A comma or an equals sign would end the parameter; JSON escapes of them do not.
        return value if plain else json.dumps(value).replace(",", "\\u002c").replace("=", "\\u003d")
    return json.dumps(value)


def normalised(path: Path) -> Path:
    """Path from the root, without `..`, which after a link would mean the parent of the link's target."""
    return Path(os.path.abspath(path))  # noqa: PTH100 - Path.absolute leaves `..` as it is
