"""Records and documents of a run folder with all text fit to be shown, before anything is made of them."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping
from functools import cache
from typing import TypeVar, cast

from harness.records.legible_text import cut, spelt_out
from harness.records.record import Record
from harness.records.redaction import redacted
from reports.rows import LeftOut

Value = TypeVar("Value")
MOST_LETTERS = 2_000
"""Of a name, a message or any other text; the middle of a longer one is left out."""


def legible(text: str) -> str:
    """Text on one line, spelt out, and cut where it is longer than any that a person reads."""
    if len(text) > MOST_LETTERS:
        # Of a secret that is cut nobody can tell any more that it is one.
        text = cut(redacted(text), most=MOST_LETTERS)
    return spelt_out(text)


def legible_record(record: Record) -> Record:
    """The record with legible text."""
    return cast("Record", _legible(record))


def legible_document(document: Mapping[str, Value]) -> dict[str, Value]:
    """A document of nested mappings and lists with legible text, keys included."""
    return {legible(str(key)): cast("Value", _legible(value)) for key, value in document.items()}


def legible_left_out(item: LeftOut) -> LeftOut:
    """What could not be used, with legible text."""
    return dataclasses.replace(item, where=legible(item.where), why=legible(item.why))


def _legible(value: object) -> object:
    """The same object where nothing in it changes, as in nearly all of thousands of records."""
    if value is None or isinstance(value, float | int):
        return value
    if isinstance(value, str):
        return legible(value)
    if isinstance(value, tuple | list):
        items = [_legible(item) for item in value]
        return value if all(map(operator.is_, items, value)) else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changes = {
            name: changed
            for name in _field_names(type(value))
            if (changed := _legible(item := getattr(value, name))) is not item
        }
        return dataclasses.replace(value, **changes) if changes else value
    if isinstance(value, Mapping):
        return {_legible(key): _legible(item) for key, item in value.items()}
    return value


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(item.name for item in dataclasses.fields(kind))
