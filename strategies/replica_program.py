"""A step as each replica of a computation compiles it, cut where replicas sum what they have."""

from collections.abc import Mapping
from dataclasses import dataclass

from strategies.ir.graph import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """What a replica runs between two sums over replicas, or several that need not wait for each other.

    Attributes:
        graph_def: serialized GraphDef; inputs are referred to and have no node.
        inputs: references of tensors from outside. outputs: those that others need of it.
        targets: nodes that it runs, whether outputs need them or not.
        sums: reference of each sum that comes after it → reference of what replicas contribute.
        n_nodes: of its graph, without those of functions.
    """

    graph_def: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    targets: tuple[str, ...]
    sums: Mapping[str, str]
    n_nodes: int


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
    """

    segments: tuple[Segment, ...]
    batch: tuple[str, ...]
    rank: str | None
    variables: Mapping[str, str]
    loss: str
    loss_dtype: DType
    weight: float

    @property
    def n_nodes(self) -> int:
        """Nodes of all segments."""
        return sum(segment.n_nodes for segment in self.segments)
