"""A step as each replica of a computation compiles it, cut where replicas sum what they have."""

from collections.abc import Mapping
from dataclasses import dataclass

from strategies.ir.graph import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """What a replica runs between two rounds of sums.

    Attributes:
        graph_def: serialized GraphDef; what it takes is referred to and has no node.
        takes: references of tensors from outside. gives: those that others need of it.
        runs: nodes that it runs, whether what it gives needs them or not.
        sums: reference of each sum that comes after it → reference of what replicas contribute.
    """

    graph_def: bytes
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    runs: tuple[str, ...]
    sums: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaProgram:
    """A step of one replica among all that run it together.

    Attributes:
        segments: in the order in which they run.
        batch: references of the replica's examples, in the order of the dataset's flattened structure.
        rank: reference of the replica's number, None where nothing asks for it.
        variables: reference of a handle → name of the captured variable.
        loss: reference of the replica's loss. loss_dtype: its type.
        weight: what its loss counts in the global one.
        n_nodes: of all segments.
    """

    segments: tuple[Segment, ...]
    batch: tuple[str, ...]
    rank: str | None
    variables: Mapping[str, str]
    loss: str
    loss_dtype: DType
    weight: float
    n_nodes: int
