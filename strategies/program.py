"""One worker's program: a step ready for a session, or the segments that a TPU replica compiles."""

from collections.abc import Mapping
from dataclasses import dataclass

from strategies.ir.graph import DType
from strategies.ir.train_graph import BatchInput, Loss, Result, Transfer
from strategies.ir.variable import Fresh, Kind, Part, SeedMix


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableAccess:
    """Access of a worker to one copy of one variable.

    Attributes:
        variable: name of its stored initial value.
        rank: replica that owns the copy, None if all replicas of all workers share it; for random state, the
            shard that draws with it.
        load: node that assigns `placeholder`.
        read: tensor of its value.
        seed_mix: change of the stored initial value for this rank, None if it is used as stored.
        fresh: initial value of a variable that a strategy added, for which none is stored.
        part: range of the variable that this holds, None for all of it.
    """

    variable: str
    kind: Kind
    rank: int | None
    placeholder: str
    load: str
    read: str
    seed_mix: SeedMix | None = None
    fresh: Fresh | None = None
    part: Part | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Everything that a session needs to run one worker's steps.

    Attributes:
        graph_def: serialized GraphDef.
        task: this worker's index in the job `worker`.
        batch: placeholders in the order of the dataset's flattened structure.
        start, stop: examples of each global batch that this worker feeds.
        losses: one per local shard.
        targets: nodes that a step runs.
        setup: nodes to run once after loading (tables, queues).
        background: nodes to run together, once beside each step, or with `taken` repeatedly.
        taken: tensor of the number of contributions in an update of the background, None without one.
        progress: tensor [2] of the step reached after a step, and 1 if its contribution came too late; None
            if every contribution counts.
        variables: accesses of this worker; shared variables are task 0's.
        n_devices: logical CPU devices that the worker's server must offer.
        self_contained: nothing crosses between tasks through TensorFlow, so no server needs to run it.
        device_filters: devices that the session may see.
        group_leader: leader of the collectives, None without collectives.
        transfers: exchanges over the worker's own transport, in one order for all workers; the graph calls
            Python by their tokens.
        n_waiting: see `strategies.planner`.
        results: results of each local shard's step beside its loss.
        steps_per_run: most steps in one run, whose batches and losses are stacked along a first axis; None if
            a run is a step.
        reshard_counts: tensors that each local replica counts, see `COUNTS` and `GAUGES` of
            `strategies.numerics.resharding`.
        aggregation_counts: as in a `TrainGraph`; empty if another worker has them.
        nodes_before: nodes of the captured graph. nodes_after: nodes of this graph.
    """

    graph_def: bytes
    task: int
    batch: tuple[BatchInput, ...]
    start: int
    stop: int
    losses: tuple[Loss, ...]
    targets: tuple[str, ...]
    setup: tuple[str, ...]
    variables: tuple[VariableAccess, ...]
    n_devices: int
    device_filters: tuple[str, ...]
    group_leader: str | None
    nodes_before: int
    nodes_after: int
    self_contained: bool = False
    background: tuple[str, ...] = ()
    taken: str | None = None
    progress: str | None = None
    transfers: tuple[Transfer, ...] = ()
    n_waiting: int = 0
    results: tuple[Result, ...] = ()
    steps_per_run: int | None = None
    reshard_counts: tuple[str, ...] = ()
    aggregation_counts: tuple[str, ...] = ()


def ref(name: str) -> str:
    """A tensor's name as TensorFlow's Python takes it."""
    return name if ":" in name else f"{name}:0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Graph that a replica runs between two sums over replicas.

    Attributes:
        graph_def: serialized GraphDef; inputs are referred to and have no node.
        inputs: references of tensors from outside. outputs: those that other segments need.
        targets: nodes that always run.
        sums: reference of each sum that follows → reference of the replica's contribution.
        n_nodes: without those of functions.
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
        rank: reference of the replica's number, None if unused.
        variables: reference of a handle → name of the captured variable.
        loss: reference of the replica's loss.
        weight: share of its loss in the global one.
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
