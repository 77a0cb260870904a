"""A record as JSON, and back: the lines of `results.jsonl`."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Collection, Mapping
from functools import cache
from typing import TYPE_CHECKING

from harness.canonical import JsonValue, json_value
from harness.errors import StoreError
from harness.records.checksums import require_sealed, sealed, unsealed
from harness.records.record import SCHEMA, Record

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_SEALED_SINCE = 2
MOST_LINE_BYTES = 1 << 24
"""No record is as long: with a thousand tasks, the matrix of what these send each other takes that much."""
# `class` is a word of Python's; only the JSON form can use it.
_JSON_NAMES = {"strategy_class": "class"}


def to_document(record: Record) -> dict[str, JsonValue]:
    """Turn a record into the mapping that JSON, CSV and reports name fields by."""
    return {
        _JSON_NAMES.get(item.name, item.name): json_value(plain(getattr(record, item.name)))
        for item in dataclasses.fields(record)
    }


def plain(value: object) -> object:
    """Turn a value of a record's field into mappings, lists and scalars."""
    # `dataclasses.asdict` deep-copies through the type of each container, which a read-only mapping refuses.
    if dataclasses.is_dataclass(value):
        return {item.name: plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value


def to_json(record: Record) -> str:
    """Write a record with its checksum as one line of JSON, no newline; what is not finite becomes null."""
    return json.dumps(sealed(to_document(record)), separators=(",", ":"), allow_nan=False)


class NewerRecordError(StoreError):
    """A record of a later version, which is sound but cannot be read here."""


def from_json(line: str | bytes, *, without: Collection[str] = ()) -> Record:
    """Read one line; known fields must have their type, unknown ones are passed over.

    Args:
        without: fields that are taken for missing, whatever they hold.
    Raises:
        NewerRecordError: a later version wrote it.
        StoreError: for anything that is not a record this version understands.
    """
    from pydantic import ValidationError

    stored = _object(line)
    # Before anything that it says is believed, its schema included.
    document = unsealed(stored)
    schema = document.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool):
        raise StoreError(
            f"must be a whole number, got {schema!r}; this is not a stratbench record", field="schema"
        )
    if schema < 1:
        raise StoreError(f"must be 1 or more, got {schema}; this is not a stratbench record", field="schema")
    if schema > SCHEMA:
        raise NewerRecordError(
            f"this version reads up to {SCHEMA}, got {schema}; read the folder with {_version_of(document)}",
            field="schema",
        )
    if schema >= _SEALED_SINCE:
        require_sealed(stored)
    document = {name: value for name, value in document.items() if name not in without}
    for python_name, json_name in _JSON_NAMES.items():
        document[python_name] = document.pop(json_name, None)
    try:
        return _adapter().validate_json(json.dumps(document), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(_JSON_NAMES.get(str(piece), piece)) for piece in first["loc"])
        rule = first["msg"].replace("Input should be", "must be")
        raise StoreError(f"{rule}, got {first['input']!r:.80}", field=path) from None


def _version_of(document: Mapping[str, JsonValue]) -> str:
    """The stratbench that wrote a record, as far as it says so."""
    provenance = document.get("provenance")
    versions = provenance.get("versions") if isinstance(provenance, dict) else None
    version = versions.get("stratbench") if isinstance(versions, dict) else None
    if not isinstance(version, str):
        return "a newer stratbench"
    return f"a newer stratbench, {version[:40]} or later, which wrote it"


def _object(line: str | bytes) -> dict[str, JsonValue]:
    if len(line) > MOST_LINE_BYTES:
        raise StoreError(f"a line of results.jsonl must be at most {MOST_LINE_BYTES:,} bytes, got more")
    try:
        document = json.loads(line, parse_constant=_refuse_constant, parse_int=_whole, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"a line of results.jsonl must be a JSON object: {error}") from None
    if not isinstance(document, dict):
        raise StoreError(f"a line of results.jsonl must be a JSON object, got {type(document).__name__}")
    return document


def _refuse_constant(token: str) -> JsonValue:
    raise ValueError(f"{token} is not JSON; missing numbers are null")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is larger than any number of a record")
    return value


def _whole(text: str) -> int:
    # What a float can hold: reports compute with floats.
    _finite(text)
    return int(text)


@cache
def _adapter() -> TypeAdapter[Record]:
    # pydantic costs more to import than all of this package; writing records must not pay for it.
    from pydantic import TypeAdapter

    return TypeAdapter(Record)
