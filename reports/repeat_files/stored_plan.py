"""A plan as its file has it, as far as a report says something of it; what it has besides is passed over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import cache
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from harness.records.legible_text import spelt_out
from reports.load import legible

MOST_TASKS = 10_000
"""Of a plan, with servers among them."""
_MOST_WHOLE = 2**63
Size: TypeAlias = Annotated[int, Field(ge=0, le=_MOST_WHOLE)]
Whole: TypeAlias = Annotated[int, Field(ge=-_MOST_WHOLE, le=_MOST_WHOLE)]
Amount: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
Name: TypeAlias = Annotated[str, AfterValidator(legible)]
Word: TypeAlias = Annotated[str, Field(max_length=200), AfterValidator(spelt_out)]
"""A name that stratbench or TensorFlow has given, such as a type's."""
Text: TypeAlias = Annotated[str, Field(max_length=10_000), AfterValidator(spelt_out)]
Shape: TypeAlias = Annotated[tuple[Whole, ...], Field(max_length=254)]
"""TensorFlow knows no more dimensions."""


class PlanError(Exception):
    """A file that holds no plan."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredCompression:
    """A compressor by name, and its options."""

    name: Word
    ratio: Amount | None = None
    rank: Whole | None = None
    levels: Whole | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredPartition:
    """A variable in parts along one axis."""

    axis: Whole
    sizes: tuple[Size, ...]
    destinations: tuple[Whole, ...] | None = None
    groups: tuple[Whole, ...] | None = None
    owners: tuple[Whole, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredNode:
    """What happens to one variable."""

    variable: Name
    shape: Shape
    dtype: Word
    bytes: Size
    sparse: bool
    synchronizer: Word
    partition: StoredPartition | None = None
    destination: Whole | None = None
    group: Whole | None = None
    proxy: bool = False
    compressor: StoredCompression | None = None
    transport: Word | None = None
    owner: Whole | None = None
    whole_gradient: bool = False
    gathered: bool = False
    in_parts: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredPlan:
    """A strategy applied to a captured step."""

    nodes: tuple[StoredNode, ...]
    replicas_per_task: Annotated[tuple[Size, ...], Field(max_length=MOST_TASKS)] = ()
    strategy_params: Annotated[Mapping[Word, bool | Whole | Amount | Text | None], Field(max_length=200)] = (
        field(default_factory=dict)
    )
    server_bytes: Annotated[tuple[Size, ...], Field(max_length=MOST_TASKS)] = ()
    worker_bytes: Size = 0
    notes: Annotated[tuple[Text, ...], Field(max_length=1_000)] = ()


def stored_plan(data: bytes) -> StoredPlan:
    """Read the bytes of `plan.json`.

    Raises:
        PlanError: they are no plan.
    """
    try:
        return _adapter().validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(piece)[:200] for piece in first["loc"])
        raise PlanError(f"must hold a plan: {path}: {first['msg']}, got {first['input']!r:.80}") from None


@cache
def _adapter() -> TypeAdapter[StoredPlan]:
    return TypeAdapter(StoredPlan)
