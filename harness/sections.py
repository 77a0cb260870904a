"""Sections of the experiment file: their base class, and the types of values in them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    SerializerFunctionWrapHandler,
    StringConstraints,
    WrapSerializer,
    model_serializer,
)
from pydantic_core import PydanticCustomError

from harness.errors import UsageError
from harness.written_values import home_expanded, parse_duration_s, parse_share

_MOST_DURATION_S = 10.0**7
_LEAST_SHARE = 0.001
_UNITS = {
    "": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
}
_WRITTEN_UNITS = ("GiB", "MiB", "KiB")
_MIN_MEMORY_BYTES = 64 * 2**20
_MAX_MEMORY_BYTES = 2**50
T = TypeVar("T")


class Section(BaseModel):
    """A part of the experiment file, and at the same time the value that the code uses.

    Written to a file, it has only the keys that differ from their defaults, have none, or are listed in
    `always_written`. A field that is added later thus does not change the hashes of older experiments.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    always_written: ClassVar[frozenset[str]] = frozenset()

    def is_written(self, name: str) -> bool:
        """True if a field is in the resolved file."""
        field = type(self).model_fields[name]
        return name in self.always_written or field.is_required() or getattr(self, name) != field.default

    @classmethod
    def key_of(cls, name: str) -> str:
        return cls.model_fields[name].alias or name

    @model_serializer(mode="wrap")
    def _to_document(self, to_document: SerializerFunctionWrapHandler) -> dict[str, Any]:
        document: dict[str, Any] = to_document(self)
        left_out = {self.key_of(name) for name in type(self).model_fields if not self.is_written(name)}
        return {key: value for key, value in document.items() if key not in left_out}


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """Annotation of a field with an option of `stratbench run`."""

    name: str
    help: str
    metavar: str | None = None


def section_in(annotation: object) -> type[Section] | None:
    """Section in a field's annotation, if any."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next(filter(None, map(section_in, get_args(annotation))), None)


def sweeps_of(section: Section) -> dict[str, tuple[Any, ...]]:
    """Values of the fields of a section that are combined with each other."""
    return {name: value for name, value in section if isinstance(value, tuple)}


def reading(parse: Callable[[object], T]) -> Callable[[object], T]:
    """Validator that reports a parser's `UsageError` at the field that it parses."""

    def read(value: object) -> T:
        try:
            return parse(value)
        except UsageError as error:
            context = {"message": error.message, "below": error.field or ""}
            raise PydanticCustomError("usage", "{message}", context) from None

    return read


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _one_or_more(value: object) -> object:
    return _as_tuple(value) if isinstance(value, list | tuple) else (value,)


def _distinct(values: tuple[T, ...]) -> tuple[T, ...]:
    repeated = next((value for place, value in enumerate(values) if value in values[:place]), None)
    if repeated is not None:
        message = f"must have different values, got {_plain(repeated)} twice; drop one"
        raise PydanticCustomError("usage", "{message}", {"message": message, "below": ""})
    return values


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _one_or_list(values: tuple[object, ...], to_list: SerializerFunctionWrapHandler) -> object:
    written = to_list(values)
    return written[0] if len(values) == 1 else written


def _path(value: object) -> Path:
    if isinstance(value, Path):
        return value
    if not isinstance(value, str):
        raise PydanticCustomError("string_type", "must be a valid string")
    if not value.strip():
        raise PydanticCustomError("string_too_short", "must have at least 1 character")
    return Path(home_expanded(value.strip())).absolute()


def _memory(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        n_bytes = value
    else:
        match = (
            re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B)?", value.strip()) if isinstance(value, str) else None
        )
        if not match or (match[2] or "") not in _UNITS:
            raise PydanticCustomError("memory", "must be bytes or a size such as 4GiB or 512MiB")
        # Limited, because a float can also be infinite.
        n_bytes = int(min(float(match[1]) * _UNITS[match[2] or ""], 2 * _MAX_MEMORY_BYTES))
    if n_bytes < _MIN_MEMORY_BYTES:
        raise PydanticCustomError("memory", "must be at least 64MiB; write a unit, such as 4GiB")
    if n_bytes > _MAX_MEMORY_BYTES:
        raise PydanticCustomError("memory", "must be at most 1024TiB")
    return n_bytes


def _memory_text(n_bytes: int) -> str | int:
    units = (unit for unit in _WRITTEN_UNITS if n_bytes % _UNITS[unit] == 0)
    unit = next(units, None)
    return n_bytes if unit is None else f"{n_bytes // _UNITS[unit]}{unit}"


def _percent(value: object) -> float:
    share = parse_share(str(value)) if isinstance(value, str | float) else None
    if share is None or not _LEAST_SHARE <= share <= 1:
        raise PydanticCustomError("percent", "must be a share such as 3%, from 0.1% to 100%")
    return share


def _percent_text(share: float) -> str:
    return f"{100 * share:.12g}%"


def _duration(value: object) -> float:
    # In a resolved file, seconds are floats; a whole number typed by a person could mean minutes.
    seconds = parse_duration_s(value) if isinstance(value, str) else value
    if not isinstance(seconds, float) or not 0 < seconds <= _MOST_DURATION_S:
        raise PydanticCustomError("duration", "must be a time with a unit, such as 90s, 30m or 1h30m")
    return seconds


ListOf: TypeAlias = Annotated[tuple[T, ...], BeforeValidator(_as_tuple)]
OneOrMore: TypeAlias = Annotated[
    tuple[T, ...], BeforeValidator(_one_or_more), Field(min_length=1), AfterValidator(_distinct)
]
"""A list of different values; one value means a list of itself."""
Sweep: TypeAlias = Annotated[OneOrMore[T], WrapSerializer(_one_or_list)]
"""Values to combine with those of other sweeps."""
# Items are also listed one by one, so that a mistyped count cannot use all memory.
Count: TypeAlias = Annotated[int, Field(ge=1, le=10**6)]
Index: TypeAlias = Annotated[int, Field(ge=0)]
Text: TypeAlias = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
AbsolutePath: TypeAlias = Annotated[Path, PlainValidator(_path), PlainSerializer(str)]
Memory: TypeAlias = Annotated[int, BeforeValidator(_memory), PlainSerializer(_memory_text)]
Percent: TypeAlias = Annotated[float, BeforeValidator(_percent), PlainSerializer(_percent_text)]
Duration: TypeAlias = Annotated[float, BeforeValidator(_duration)]
