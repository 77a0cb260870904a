"""One worker's program: a step ready for a session, or the segments that a TPU replica compiles."""

from collections.abc import Mapping
from dataclasses import dataclass

from strategies.ir.graph import DType
from strategies.ir.train_graph import TrainGraph
from strategies.ir.variable import Variable


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Everything that a session needs to run one worker's steps.

    Attributes:
        graph_def: serialized GraphDef.
        step: rewritten step without graph, boundaries and regions, which would use memory beside `graph_def`.
        targets: nodes to run in a step.
        variables: variables that this worker loads and reads; task 0 has the shared ones.
        task: this worker's index in the job `worker`.
        start, stop: range of examples of the global batch that this worker feeds.
        n_devices: logical CPU devices that the worker's server must offer.
        device_filters: devices that the session may see.
        group_leader: leader of the collectives, None without collectives.
        self_contained: True if tasks exchange nothing through TensorFlow, so that no server needs to run it.
        n_waiting: maximum number of threads that wait for the ring, see `strategies.planner`.
        nodes_before: number of nodes of the captured graph. nodes_after: number of nodes of this graph.
    """

    graph_def: bytes
    step: TrainGraph
    targets: tuple[str, ...]
    variables: tuple[Variable, ...]
    task: int
    start: int
    stop: int
    n_devices: int
    device_filters: tuple[str, ...]
    group_leader: str | None
    self_contained: bool
    n_waiting: int
    nodes_before: int
    nodes_after: int

    @property
    def setup(self) -> tuple[str, ...]:
        """Nodes to run once after loading (tables, queues)."""
        return (*self.step.tables, *self.step.setup)


def ref(name: str) -> str:
    """Name of a tensor in TensorFlow's Python API."""
    return name if ":" in name else f"{name}:0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Graph that a replica runs between two sums over replicas.

    Attributes:
        graph_def: serialized GraphDef; inputs are referenced without having a node.
        inputs: references of tensors from other segments. outputs: references of tensors for other segments.
        targets: nodes that always run.
        sums: reference of each subsequent sum → reference of the replica's contribution.
        n_nodes: number of nodes, without those in functions.
    """

    graph_def: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    targets: tuple[str, ...]
    sums: Mapping[str, str]
    n_nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaProgram:
    """Step of one of the replicas that run it together.

    Attributes:
        batch: references of the replica's examples, in the order of the dataset's flattened structure.
        rank: reference of the replica's number, None if unused.
        variables: reference of a handle → name of the captured variable.
        loss: reference of the replica's loss.
        weight: weight of its loss in the global loss.
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
        return sum(segment.n_nodes for segment in self.segments)
