"""Variables of a step: purpose, access nodes, initial value, and part of a captured variable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from strategies.ir.graph import DType, Shape

if TYPE_CHECKING:
    import numpy.typing as npt

    Array: TypeAlias = npt.NDArray[Any]

Inherits: TypeAlias = Literal["own", "first", "alike", "share", "nothing"]
_TYPES = {"float": "float32", "double": "float64", "int64": "int64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """Initial value of a variable that a strategy added.

    Attributes:
        kind: `zeros`; `normal`, draws with this seed; or `seed`, the seed followed by zeros.
        inherits: value after a checkpoint is restored: the replica's `own`; the `first` one of all (`alike`:
            also with another shape); its `share` of the sum, with shares of removed owners added to the first
            of `owners`; or `nothing`.
        owners: ranks of the replicas with such a variable, ascending.
    """

    kind: Literal["zeros", "normal", "seed"]
    dims: tuple[int, ...]
    dtype: str
    seed: int = 0
    inherits: Inherits = "own"
    owners: tuple[int, ...] = ()

    def value(self) -> Array:
        # `stratbench list` reads plans, and should not wait for NumPy's import.
        import numpy as np

        if self.kind == "normal":
            return np.random.default_rng(self.seed).standard_normal(self.dims).astype(_TYPES[self.dtype])
        array = np.zeros(self.dims, _TYPES[self.dtype])
        if self.kind == "seed":
            array[0] = self.seed
        return array

    def inherited(self, rank: int | None, saved: Mapping[int, Array]) -> Array:
        """Value with which a replica continues from a checkpoint; `saved` is rank → value."""
        own = None if self.inherits == "nothing" else saved.get(rank or 0)
        if saved and self.inherits in ("first", "alike"):
            own = saved[min(saved)]
        elif self.inherits == "share" and self.owners[:1] == (rank,):
            orphaned = [saved[r] for r in sorted(saved) if r not in self.owners]
            own = sum(orphaned, start=self.value() if own is None else own)
        return self.value() if own is None else own.astype(_TYPES[self.dtype])


Kind: TypeAlias = Literal["trainable", "slot", "state"]
Rule: TypeAlias = Literal["mean", "sum", "first-replica", "per-replica"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Range `start` to `stop` of a captured variable along `axis`; `index` counts those of one task."""

    variable: str
    index: int
    axis: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A variable and the nodes through which a session creates, loads and reads it.

    Attributes:
        name: name that the workload's author gave it; copies in several replicas share it.
        kind: `trainable`, `slot` (owned by an optimizer) or `state` (of the forward pass).
        group: scale of its update error: `trainable`, or the kind of slot or state.
        rule: merge rule of state, None for other kinds.
        handle: VarHandleOp node. `placeholder` → `load` assigns it, tensor `read` is its value.
        rank: replica that owns this copy, or shard for random state; None if all replicas share one.
        seed_word: index of the seed in a random state, None otherwise.
        fresh: initial value if a strategy added it; None if the capture has it.
        sole: True if one replica holds it for all, so that it is listed once.
    """

    name: str
    kind: Kind
    group: str
    dtype: DType
    shape: Shape
    handle: str
    placeholder: str
    load: str
    read: str
    slot_of: str | None = None
    rule: Rule | None = None
    rank: int | None = None
    seed_word: int | None = None
    fresh: Fresh | None = None
    part: Part | None = None
    sole: bool = False

    @property
    def access(self) -> tuple[str, str, str, str]:
        return self.handle, self.placeholder, self.load, self.read

    @property
    def stored(self) -> str:
        """Name of the stored value that this holds, or holds a part of."""
        return self.name if self.part is None else self.part.variable

    @property
    def stored_rank(self) -> int | None:
        return None if self.sole else self.rank

    @property
    def lasts(self) -> bool:
        """True if the value has a meaning beyond its session."""
        return self.fresh is None or self.fresh.inherits != "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Consecutive ranges of these lengths along an axis."""

    axis: int
    sizes: tuple[int, ...]

    @property
    def n(self) -> int:
        return len(self.sizes)

    @property
    def starts(self) -> tuple[int, ...]:
        return tuple(accumulate(self.sizes[:-1], initial=0))

    def shape(self, whole: Sequence[int], index: int) -> tuple[int, ...]:
        return (*whole[: self.axis], self.sizes[index], *whole[self.axis + 1 :])


def part_name(variable: str, index: int) -> str:
    """Name of a part of a variable."""
    return f"{variable}/part_{index}"
