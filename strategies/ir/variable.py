"""Variables of a step: what each is for, how a session reaches it, and what part of a captured one it has."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from strategies.ir.graph import DType, Shape

Array: TypeAlias = npt.NDArray[Any]
Inherits: TypeAlias = Literal["own", "first", "alike", "share", "nothing"]
_TYPES = {"float": np.float32, "double": np.float64, "int64": np.int64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """A first value.

    Attributes:
        kind: zeros, normal draws of this seed, or `seed`: the seed itself and then zeros.
        dtype: float, double or int64.
        inherits: what a replica gets of the values that a checkpoint has for the replicas that saved it: its
            `own`; the `first` of all, where all replicas must have the same, or, where a value of another
            shape must not be passed over either, `alike`; or its `share` of their sum,
            which is its own and, for the first of `owners`, those of all ranks that are no owners any more;
            or `nothing`, for what counts from the start of a session.
        owners: the ranks that have such a variable, in ascending order.
    """

    kind: Literal["zeros", "normal", "seed"]
    dims: tuple[int, ...]
    dtype: str
    seed: int = 0
    inherits: Inherits = "own"
    owners: tuple[int, ...] = ()

    def value(self) -> Array:
        """The value, the same each time."""
        if self.kind == "normal":
            return np.random.default_rng(self.seed).standard_normal(self.dims).astype(_TYPES[self.dtype])
        array = np.zeros(self.dims, _TYPES[self.dtype])
        if self.kind == "seed":
            array[0] = self.seed
        return array

    def inherited(self, rank: int | None, saved: Mapping[int, Array]) -> Array:
        """The value with which a replica goes on from a checkpoint.

        Args:
            saved: rank → value of these dimensions.
        """
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
class SeedMix:
    """How a rank's random state differs from rank 0's: one word of it is mixed with (rank, variable name)."""

    rank: int
    word: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Which range of a captured variable a part holds.

    Attributes:
        variable: the captured one. index: of the part, from 0. start, stop: the range along `axis`.
    """

    variable: str
    index: int
    axis: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A variable and the nodes through which a session creates, loads and reads it.

    Attributes:
        name: as its author knows it; copies of a variable in several replicas share it.
        kind: trainable, slot (anything an optimizer owns) or state (the forward pass's own).
        group: what its update error is scaled by: `trainable`, or the kind of slot or state.
        rule: how new values from several replicas become one; None unless kind is state.
        handle: VarHandleOp node. `placeholder` → `load` assigns it, tensor `read` is its value.
        rank: the replica that owns this copy; None when all replicas share one. Random state has a copy for
            each shard, with the shard's rank.
        seed_word: position of the seed in a random state, None otherwise.
        fresh: what it begins with if a strategy added it; None where the capture has its initial value.
        part: the range of a captured variable that it holds, None where it is a whole one.
        sole: only this replica has it, and it stands for all: it is seen once, like what all share.
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
        """Names of the nodes through which a session reaches it: handle, placeholder, load and read."""
        return self.handle, self.placeholder, self.load, self.read


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Consecutive ranges of these lengths along an axis."""

    axis: int
    sizes: tuple[int, ...]

    @property
    def n(self) -> int:
        """Number of parts."""
        return len(self.sizes)

    @property
    def starts(self) -> tuple[int, ...]:
        """First index of each part."""
        return tuple(accumulate(self.sizes[:-1], initial=0))

    def shape(self, whole: Sequence[int], index: int) -> tuple[int, ...]:
        """The shape of a part."""
        return (*whole[: self.axis], self.sizes[index], *whole[self.axis + 1 :])


def part_name(variable: str, index: int) -> str:
    """What a part of a variable is called: the variable stays what its author knows."""
    return f"{variable}/part_{index}"
