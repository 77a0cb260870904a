"""A plan: the treatment of every variable by a strategy, as JSON to read, compare, edit and run again."""

from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from strategies.ir.graph import n_elements
from strategies.plan.aggregation import Aggregation
from strategies.plan.execution import Execution
from strategies.plan.faults import Fault
from strategies.plan.number_lists import Numbers
from strategies.topology import Device, Topology

StrategyClass = Literal["exact", "bounded", "statistical", "control"]
COMPARED_WITH_REFERENCE: frozenset[StrategyClass] = frozenset(("exact", "control"))
"""Classes whose variables must equal the reference's; other classes differ from it by design."""
Synchronizer = Literal[
    "none",
    "ps",
    "all-reduce",
    "hierarchical-all-reduce",
    "average",
    "cross-replica-sum",
    "robust-gather",
    "robust-servers",
]
BY_RULE: frozenset[Synchronizer] = frozenset(("robust-gather", "robust-servers"))
"""Synchronizers that combine gradients by a rule, which sees all of them, in no buckets."""
BETWEEN_WORKERS: frozenset[Synchronizer] = frozenset(
    ("hierarchical-all-reduce", "robust-gather", "robust-servers")
)
"""Synchronizers in which one replica per worker acts for all replicas of the worker."""
DENSE_SYNCHRONIZERS: frozenset[Synchronizer] = frozenset(("none", "average", "cross-replica-sum"))
"""Synchronizers that send sparse gradients as dense values."""
Transport = Literal["auto", "ring", "nccl", "tcp"]
SparseDuplicates = Literal["kept", "merged", "merged (linear)"]
"""Rows of equal ids in a sparse gradient: applied one by one, or summed before the update; `linear` where the
sum leaves every result of the update as it is."""


_GATHERED = frozenset({"half", "float", "double", "int32", "int64"})
"""Types that TensorFlow's gathers support, which emulate those of cores."""


class Frozen(BaseModel):
    """Base of the JSON models: frozen, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Rows(NamedTuple):
    """Rows of a sparse gradient; those per step do not depend on the number of examples."""

    per_example: float
    per_step: float = 0.0


class VariableSummary(Frozen):
    """Facts about one variable that builders use.

    Attributes:
        shape: shape; -1 is an unknown length.
        sparse: True if its gradient is sparse (IndexedSlices).
        rows_per_example: gradient rows per example; None if dense or unknown.
        rows_per_step: further gradient rows of each replica and micro-batch, such as a sampled softmax draws.
        linear_rows: True if its update depends only on the sum of the rows of each id.
        synced: True if its gradient or its new state crosses replicas.
        readiness: position in the order in which the backward pass produces gradients, None without a
            gradient.
        partitionable_axes: axes along which it and its slots can be updated in parts.
        cut_refusals: axis → operation of its update that prevents a cut along the axis.
        apart: True if a single replica can update it: no other update reads its value or its slots.
        apart_axes: axes along which different replicas can update the parts: no part depends on another.
        gradient_shared: True if other updates read its gradient, as in clipping by a global norm.
        crossings: number of its gradients or new states that cross replicas per step.
        dense_crossings: number of these crossings that are dense although the variable is sparse; they belong
            to another of its updates.
        reads: number of levels of a step at which a replica reads it, each after another update; 0 if only
            updates read it.
        updates: updates per step.
        read_before_update: True if a step reads it only before its update, by nodes that could use its value.
        only_read: True if replicas read it and no step writes it or its slots; for a slot, the same of its
            variable.
    """

    name: str
    kind: Literal["trainable", "slot", "state"]
    slot_of: str | None = None
    rule: Literal["mean", "sum", "first-replica", "per-replica"] | None = None
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    sparse: bool = False
    rows_per_example: float | None = None
    rows_per_step: float = 0.0
    linear_rows: bool = False
    synced: bool = False
    readiness: int | None = None
    partitionable_axes: tuple[int, ...] = ()
    cut_refusals: Mapping[int, str] = {}
    apart: bool = False
    apart_axes: tuple[int, ...] = ()
    gradient_shared: bool = False
    crossings: int = 1
    dense_crossings: int = 0
    reads: int = 1
    updates: int = 1
    read_before_update: bool = False
    only_read: bool = False

    @property
    def updated_by_elements(self) -> bool:
        """True if an element's update needs only the gradient's same element, unlike norms and row means."""
        long_axes = {axis for axis, length in enumerate(self.shape) if length > 1}
        is_apart = self.kind != "trainable" or long_axes <= set(self.apart_axes)
        return is_apart and not self.gradient_shared

    def can_lie_in_parts(self, n_replicas: int) -> bool:
        """True if each replica of a TPU computation can store an equal part of it."""
        is_alike = self.rule != "per-replica"
        return is_alike and self.dtype in _GATHERED and n_elements(self.shape) >= max(n_replicas, 2)


class StatisticSummary(Frozen):
    """Batch statistics with which a layer normalises.

    Attributes:
        layer: path of the layer.
        bytes: bytes of the statistics and their gradients per step.
        levels: level in the step of each of its statistics; those of one level do not wait for each other.
    """

    layer: str
    bytes: int
    levels: tuple[int, ...] = (1,)


class BatchSummary(Frozen):
    """Component of the batch: path in the dataset's structure, and shape including the batch axis."""

    path: str
    dtype: str
    shape: tuple[int, ...]


class StepSummary(Frozen):
    """Summary of a captured step for builders, reports and `plan`: no graph, no TensorFlow.

    Attributes:
        own_statistics: layer → reason why it cannot use statistics of the whole batch.
        synchronized: layers with `synchronized=True`.
    """

    workload: str
    n_nodes: int
    variables: tuple[VariableSummary, ...]
    batch: tuple[BatchSummary, ...]
    statistics: tuple[StatisticSummary, ...] = ()
    own_statistics: Mapping[str, str] = {}
    synchronized: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Compression(Frozen):
    """A compressor by name with its options."""

    name: str
    ratio: float | None = None
    rank: int | None = None
    levels: int | None = None


class Partition(Frozen):
    """A variable in consecutive parts along one axis.

    Attributes:
        sizes: length of each part.
        destinations: task that serves each part.
        groups: bucket of each part's gradient.
        owners: rank of the single replica that updates each part.
    """

    axis: int
    sizes: Numbers
    destinations: Numbers | None = None
    groups: Numbers | None = None
    owners: Numbers | None = None


class PlanNode(Frozen):
    """Treatment of one variable.

    Attributes:
        destination: task that serves it; None if every replica owns a copy.
        group: bucket in which it is sent; None outside collectives and for rows that TensorFlow gathers.
        proxy: True if a worker's replicas read it from one copy on their host.
        transport: transport of its gradient between members, or of its new value from its owner: `tcp` is the
            workers' own ring, the others are TensorFlow's.
        owner: rank of the single replica that updates it. The other replicas receive its new value if it is
            synchronised, and hold no copy if it is not (a slot).
        whole_gradient: True if every replica, not only the owner, gets the sum of its gradient.
        gathered: True if only its owner stores it; in each step the others receive its value as a tensor
            before they read it.
        in_parts: True if each replica stores an equal part of it while a host loop runs.
        sparse_duplicates: treatment of rows of equal ids; None if no rows cross replicas.
    """

    variable: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    sparse: bool
    partition: Partition | None = None
    synchronizer: Synchronizer
    destination: int | None = None
    group: int | None = None
    proxy: bool = False
    compressor: Compression | None = None
    transport: Transport | None = None
    owner: int | None = None
    whole_gradient: bool = False
    gathered: bool = False
    in_parts: bool = False
    sparse_duplicates: SparseDuplicates | None = None

    @property
    def merges_rows(self) -> bool:
        return self.sparse_duplicates in ("merged", "merged (linear)")

    def n_members(self, topology: Topology) -> int:
        """Number of members of its collectives: all replicas, or one per worker."""
        by_worker = self.synchronizer in BETWEEN_WORKERS or self.transport == "tcp"
        return topology.n_tasks if by_worker else topology.n_replicas

    def n_encoders(self, topology: Topology) -> tuple[int, ...]:
        """Number of replicas per task that encode gradients for its collectives."""
        return (1,) * topology.n_tasks if self.synchronizer in BETWEEN_WORKERS else topology.replicas_per_task


class TaskTraffic(Frozen):
    """Predicted bytes per step of each of several tasks that send and receive as much.

    Attributes:
        tasks: the tasks, ascending.
        sent_bytes: bytes that such a task sends to all others.
        received_bytes: bytes that it receives from all others.
        pull_sent_bytes: part of `sent_bytes` that consists of values read from this task as a server.
        pull_received_bytes: part of `received_bytes` that consists of values read from servers.
    """

    tasks: Numbers
    sent_bytes: int
    received_bytes: int
    pull_sent_bytes: int = 0
    pull_received_bytes: int = 0

    @property
    def busiest_bytes(self) -> int:
        """Bytes on the task's link in the direction with more."""
        return max(self.sent_bytes, self.received_bytes)


class Plan(Frozen):
    """A strategy applied to a captured step on a topology.

    Attributes:
        payload_bytes_per_step: predicted bytes sent per step by all workers together; an upper bound for
            sparse gradients, whose number of rows is known only in a run, and for backup workers.
        traffic: the same by task, those that send and receive as much together.
        server_bytes: task → bytes of variables and slots that it serves.
        worker_bytes: bytes of variables and slots on the replica with the most.
        statistics: layers that normalise by statistics of the whole batch; their bytes are in the payload.
        shares_devices: True if some replicas are logical devices of one physical device.
        warnings: reasons why the plan lacks its strategy's purpose, and strategies to choose instead.
    """

    workload: str
    strategy: str
    strategy_params: Mapping[str, bool | int | float | str | None]
    strategy_class: StrategyClass
    replicas_per_task: Numbers
    batch_size: int
    device: Device
    shares_devices: bool = False
    nodes: tuple[PlanNode, ...]
    payload_bytes_per_step: int
    traffic: tuple[TaskTraffic, ...] = ()
    server_bytes: Numbers
    worker_bytes: int
    statistics: tuple[StatisticSummary, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()

    @property
    def execution(self) -> Execution:
        return Execution.of(self.strategy_params)

    @property
    def aggregation(self) -> Aggregation | None:
        """Rule that combines workers' gradients; None if they are summed."""
        return Aggregation.of(self.strategy_params, len(self.replicas_per_task))

    @property
    def sparse_duplicates(self) -> SparseDuplicates | None:
        """Treatment of rows of equal ids: `kept` if any variable's are; None without sparse gradients."""
        there = {node.sparse_duplicates for node in self.nodes}
        return next((get_arg for get_arg in get_args(SparseDuplicates) if get_arg in there), None)

    @property
    def busiest(self) -> TaskTraffic | None:
        """Tasks with the most bytes in one direction; None if nothing is known."""
        return max(self.traffic, key=lambda alike: alike.busiest_bytes, default=None)


def mistake(error: ValidationError) -> str:
    """First validation error, on one line: place, rule, received value."""
    first = error.errors(include_url=False)[0]
    path = ".".join(str(piece) for piece in first["loc"])
    rule = first["msg"][:1].lower() + first["msg"][1:]
    return f"{path}: {rule}, got {first['input']!r:.80}"
