"""Checksums of a run folder's content, written with it and checked on reading.

SHA-256, as in `sha256sum`: it is in the standard library, detects every change, and is fast. Documents are
hashed by content, so that copied, reordered or reformatted lines stay valid; files are hashed by bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from harness.canonical import JsonValue, json_value
from harness.errors import StoreError

_MOST_EXACT = 2.0**53  # above this, not every whole number is a float
CHECKSUM = "checksum"
"""Member of a document with the checksum of all others."""


def with_checksum(document: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """A document with its checksum as last member."""
    return {**document, CHECKSUM: _checksum(json_value(document))}


def without_checksum(document: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Content of a document without its checksum, if it has one; older documents have none.

    Raises:
        StoreError: the checksum does not match.
    """
    content = {name: value for name, value in document.items() if name != CHECKSUM}
    if CHECKSUM in document:
        try:
            actual = _checksum(content)
        except RecursionError:
            raise StoreError("must not be nested hundreds of times") from None
        except ValueError as error:
            raise StoreError(f"must hold finite numbers: {error}; {_CHANGED}", field=CHECKSUM) from None
        if document[CHECKSUM] != actual:
            stored = str(document[CHECKSUM])[:12]
            raise StoreError(f"must be {actual[:12]}…, got {stored!r}…; {_CHANGED}", field=CHECKSUM)
    return content


def require_checksum(document: Mapping[str, JsonValue]) -> None:
    """Refuse a document that should have a checksum, but has none.

    Raises:
        StoreError: the document has none.
    """
    if CHECKSUM not in document:
        raise StoreError(f"must be given, got nothing; {_CHANGED}", field=CHECKSUM)


def _checksum(document: JsonValue) -> str:
    # Faster than `canonical_hash`, because it takes JSON documents only: a report checks thousands.
    text = json.dumps(_in_one_spelling(document), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


_ONE_SPELLING = (str, int, type(None))


def _in_one_spelling(value: JsonValue) -> JsonValue:
    """Value with whole numbers as integers: tools with a single number type write 1.0 as 1."""
    # Most of a record is plain, and a call for each value would take longer than the checksum.
    if isinstance(value, dict):
        return {
            name: item if isinstance(item, _ONE_SPELLING) else _in_one_spelling(item)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [
            item
            if isinstance(item, _ONE_SPELLING) or (isinstance(item, float) and not item.is_integer())
            else _in_one_spelling(item)
            for item in value
        ]
    if isinstance(value, float) and value.is_integer() and abs(value) < _MOST_EXACT:
        return int(value)
    return value


def file_checksum(data: bytes) -> str:
    """Checksum of a file's bytes; 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def require_unchanged(actual: str, checksum: str | None, *, name: str) -> None:
    """Refuse a file whose checksum differs from the stored one.

    Args:
        actual: checksum of its bytes.
        checksum: None for a file older than checksums.
        name: name of the file, for the message.
    Raises:
        StoreError: the checksums differ.
    """
    if checksum not in (None, actual):
        raise StoreError(
            f"{name} must have the checksum {str(checksum)[:12]}…, got {actual[:12]}…; {_CHANGED}"
        )


_CHANGED = "it was damaged or edited after it was written"
