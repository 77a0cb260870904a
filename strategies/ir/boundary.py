"""Boundaries of a step: where gradients and new state cross from shards to what all replicas share."""

from dataclasses import dataclass
from typing import Literal

from strategies.ir.graph import DType, Shape
from strategies.ir.variable import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What one shard (or several, summed already) brings to a boundary.

    Attributes:
        values: tensor reference; for a sparse gradient the rows, for a dense one the whole.
        indices: tensor reference of the row ids, None when dense.
        weight: factor that turns it into its part of the global mean or sum; 1 when it is applied already.
        total: it is the sum over all replicas of all tasks already.
    """

    rank: int
    values: str
    indices: str | None
    weight: float
    total: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """Where one replica's value becomes everybody's: a gradient before its update, a new forward state…

    The identity node `values` (and `indices`) is read by the update; synchronisation replaces what flows in.

    Attributes:
        role: gradient, state (the value about to be assigned to a forward state variable), or variable (the
            value of an updated one, about to be assigned to it).
        rule: mean, sum or first-replica; of gradients it is the loss's reduction.
        merged: rows of equal ids are summed behind the boundary, so that they may be summed before it too.
        rank: the replica whose copy of the variable is updated; None when all share one.
        contributions: empty before replication.
        level: how many boundaries are crossed in a row, with updates between them, itself included;
            those of one level do not need each other.
    """

    variable: str
    role: Literal["gradient", "state", "variable"]
    rule: Rule
    dtype: DType
    shape: Shape
    values: str
    indices: str | None = None
    index_dtype: DType | None = None
    merged: bool = False
    rank: int | None = None
    contributions: tuple[Contribution, ...] = ()
    level: int = 1
