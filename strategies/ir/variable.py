"""Variables of a step: what each is for, how a session reaches it, and what part of a captured one it has."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from strategies.ir.graph import DType, Shape
from strategies.ir.initial_value import Fresh

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
