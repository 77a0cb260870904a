"""Canonical form of values: JSON, its hash, and folder names derived from it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Collection, Mapping
from functools import cache

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]

_SLUG_LENGTH = 48


def writable(text: str) -> str:
    """Text that can be written as UTF-8: undecodable bytes of a path become `\\udcNN`."""
    return text.encode("utf-8", "backslashreplace").decode()


def json_value(value: object, *, without: Collection[str] = ()) -> JsonValue:
    """Convert nested values to JSON values; numbers that are not finite become null.

    Args:
        value: nested dataclasses, mappings with text keys, sequences, and scalars.
        without: names of dataclass fields to leave out at any depth.
    Raises:
        TypeError: a value has no form in JSON.
    """
    # Scalars first: a report has millions of them.
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, str):
        return value if value.isascii() else writable(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [json_value(item, without=without) for item in value]
    if isinstance(value, Mapping):
        return {writable(str(key)): json_value(item, without=without) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # Fields named like a keyword end in an underscore.
        return {
            name.rstrip("_"): json_value(getattr(value, name), without=without)
            for name in field_names(type(value))
            if name not in without
        }
    raise TypeError(f"{type(value).__name__} has no JSON form: {value!r:.80}")


@cache
def field_names(kind: type) -> tuple[str, ...]:
    """Names of a dataclass's fields."""
    return tuple(item.name for item in dataclasses.fields(kind))


def canonical_json(value: object) -> str:
    """Write data as JSON with sorted keys and no spaces, equal for equal data."""
    return json.dumps(json_value(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical_hash(value: object) -> str:
    """Hash data by its canonical JSON; 64 hex digits (sha256)."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def slug(text: str) -> str:
    """Reduce text to `[a-z0-9-]`, at most 48 characters, which is a valid folder name everywhere."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    words = re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")
    return words[:_SLUG_LENGTH].strip("-") or "x"
