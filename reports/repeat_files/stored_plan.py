"""A plan as its file has it, as far as a report says something of it; what it has besides is passed over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import cache

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass


class PlanError(Exception):
    """A file that holds no plan."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredCompression:
    """A compressor by name, and its options."""

    name: str
    ratio: float | None = None
    rank: int | None = None
    levels: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredPartition:
    """A variable in parts along one axis."""

    axis: int
    sizes: tuple[int, ...]
    destinations: tuple[int, ...] | None = None
    groups: tuple[int, ...] | None = None
    owners: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredNode:
    """What happens to one variable."""

    variable: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    sparse: bool
    synchronizer: str
    partition: StoredPartition | None = None
    destination: int | None = None
    group: int | None = None
    proxy: bool = False
    compressor: StoredCompression | None = None
    transport: str | None = None
    owner: int | None = None
    whole_gradient: bool = False
    gathered: bool = False
    in_parts: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredPlan:
    """A strategy applied to a captured step."""

    nodes: tuple[StoredNode, ...]
    replicas_per_task: tuple[int, ...] = ()
    strategy_params: Mapping[str, bool | int | float | str | None] = field(default_factory=dict)
    server_bytes: tuple[int, ...] = ()
    worker_bytes: int = 0
    notes: tuple[str, ...] = ()


def stored_plan(data: bytes) -> StoredPlan:
    """Read the bytes of `plan.json`.

    Raises:
        PlanError: they are no plan.
    """
    try:
        return _adapter().validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(piece) for piece in first["loc"])
        raise PlanError(f"must hold a plan: {path}: {first['msg']}, got {first['input']!r:.80}") from None


@cache
def _adapter() -> TypeAdapter[StoredPlan]:
    return TypeAdapter(StoredPlan)
