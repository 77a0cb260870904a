"""A plan: what a strategy does with every variable, as JSON to be read, compared, edited and run again."""

import operator
from collections.abc import Mapping
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from strategies.ir.sizes import n_elements
from strategies.plan.aggregation import Aggregation
from strategies.plan.execution import Execution
from strategies.plan.faults import Fault
from strategies.topology import Device, Topology

StrategyClass = Literal["exact", "bounded", "statistical", "control"]
HELD_TO_THE_REFERENCE: frozenset[StrategyClass] = frozenset(("exact", "control"))
"""Classes whose variables must be the reference's; others differ from it by what they are."""
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
"""Those by which gradients are combined by a rule, which sees all of them, in no buckets."""
BETWEEN_WORKERS: frozenset[Synchronizer] = frozenset(
    ("hierarchical-all-reduce", "robust-gather", "robust-servers")
)
"""Those by which one replica of each worker speaks for all of its worker."""
DENSE_SYNCHRONIZERS: frozenset[Synchronizer] = frozenset(("none", "average", "cross-replica-sum"))
"""Those by which nothing of a sparse gradient crosses as rows."""
Transport = Literal["auto", "ring", "nccl", "tcp"]
SparseDuplicates = Literal["kept", "merged", "merged (linear)"]
"""Rows of equal ids in a sparse gradient: applied one by one, or summed before the update; `linear` where the
sum leaves every result of the update as it is."""


_GATHERED = frozenset({"half", "float", "double", "int32", "int64"})
"""Types that TensorFlow's gathers take, by which a core's are emulated."""


class Frozen(BaseModel):
    """Base settings of the JSON shapes: no unknown keys, no change after reading."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class VariableSummary(Frozen):
    """What a builder knows of one variable.

    Attributes:
        shape: -1 is an unknown length.
        sparse: its gradient comes as rows (IndexedSlices).
        rows_per_example: gradient rows that one example makes; None when dense or unknown.
        linear_rows: its update reads rows of equal ids as their sum only.
        synced: its gradient or its new state crosses replicas.
        readiness: place in the order in which backward makes gradients ready, None without gradient.
        partitionable_axes: along which parts of it and of its slots can be updated each by themselves.
        cut_refusals: axis → why it cannot be cut along it, where its update is the reason: node, op and rule.
        apart: one replica alone can update it: no other update reads its value or its slots.
        apart_axes: along which each part can be updated by another replica: no part reads another.
        gradient_shared: other updates read its gradient, as clipping by a global norm does.
        crossings: gradients, or new states, that cross replicas in a step.
        dense_crossings: of these, those of a sparse variable that are dense, in another of its updates.
        reads: times in a step that a replica reads it before its gradients or its new state cross, each after
            another update; 0 of what is only added to, or read by updates.
        updates: times in a step that it is updated.
        read_before_update: a step reads it before its update only, by nodes that could take its value.
        only_read: replicas read it, and no step writes it or a slot of it; of a slot, its variable is so.
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

    def can_lie_in_parts(self, n_replicas: int) -> bool:
        """True if each replica of a TPU computation can keep an equal part of it."""
        is_alike = self.rule != "per-replica"
        return is_alike and self.dtype in _GATHERED and n_elements(self.shape) >= max(n_replicas, 2)


class StatisticSummary(Frozen):
    """Statistics of a batch that a layer normalises by.

    Attributes:
        layer: path.
        bytes: of all that could cross replicas in a step: its statistics, and their gradients.
    """

    layer: str
    bytes: int


class BatchSummary(Frozen):
    """A fed component of the batch: its path in the dataset's structure, its shape, batch axis first."""

    path: str
    dtype: str
    shape: tuple[int, ...]


class StepSummary(Frozen):
    """A captured step as builders, reports and `plan` see it: no graph, no TensorFlow.

    Attributes:
        own_statistics: layer → why its statistics cannot become those of the whole batch.
        synchronized: layers whose author asks for statistics of the whole batch.
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
    """A compressor by name with its options; see `strategies.plan.compressors`."""

    name: str
    ratio: float | None = None
    rank: int | None = None
    levels: int | None = None


class Partition(Frozen):
    """A variable in parts: consecutive ranges of these lengths along one axis.

    Attributes:
        destinations: task that holds each part, for a parameter server.
        groups: bucket of each part's gradient.
        owners: rank of the replica that alone updates each part.
    """

    axis: int
    sizes: tuple[int, ...]
    destinations: tuple[int, ...] | None = None
    groups: tuple[int, ...] | None = None
    owners: tuple[int, ...] | None = None


class PlanNode(Frozen):
    """What happens to one variable.

    Attributes:
        destination: task that holds a parameter-server variable; None when every replica owns a copy.
        group: bucket of what travels together, None outside collectives and of rows that TensorFlow gathers.
        proxy: a worker's replicas read it from one copy on their host.
        compressor: of its gradient, None where it travels as it is.
        transport: of a gradient between members, and of a new value that its owner gives to all: `tcp` is the
            workers' own, others are TensorFlow's, which alone chooses how rows go by these.
        owner: rank of the replica that alone updates it; the others get its new value where it is
            synchronised, and have none of it where it is not (a slot). None where all update their copies.
        whole_gradient: every replica gets the sum of its gradient, not its owner alone.
        gathered: its owner alone keeps it; in each step the others get its value before they read it, as a
            tensor, and no new value after the update.
        in_parts: while a loop of the host runs, each replica keeps an equal part of it.
        sparse_duplicates: what becomes of rows of equal ids; None where no rows cross.
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
        """True if rows of equal ids are summed before they travel and before the update."""
        return self.sparse_duplicates in ("merged", "merged (linear)")

    def n_members(self, topology: Topology) -> int:
        """How many take part in its collectives: all replicas, or one of each worker."""
        by_worker = self.synchronizer in BETWEEN_WORKERS or self.transport == "tcp"
        return topology.n_tasks if by_worker else topology.n_replicas

    def n_encoders(self, topology: Topology) -> tuple[int, ...]:
        """By task, how many encode their gradients for its collectives: all replicas, or one of them."""
        if self.synchronizer in BETWEEN_WORKERS:
            return (1,) * topology.n_tasks
        return tuple(len(topology.local_replicas(task)) for task in range(topology.n_tasks))


class Plan(Frozen):
    """A strategy applied to a captured step on a topology.

    Attributes:
        payload_bytes_per_step: predicted bytes that all workers together send in a step; an upper bound where
            gradients are sparse, since the rows of a step are known only when it runs, and with backup
            workers, who take no part in steps that they come late to.
        payload_matrix: [task i][task j] → predicted bytes per step from i to j.
        pull_matrix: of these, values that servers send back to be read.
        server_bytes: task → bytes of variables and slots it serves.
        worker_bytes: bytes that one replica owns, the one that owns the most.
        statistics: layers that normalise by statistics of the whole batch; their bytes are in the payload.
        shares_devices: some replicas are logical devices of one physical device.
        faults: of its workers, which they are to have.
        warnings: why the plan is not what its strategy is chosen for, and what to choose instead.
    """

    workload: str
    strategy: str
    strategy_params: Mapping[str, bool | int | float | str | None]
    strategy_class: StrategyClass
    replicas_per_task: tuple[int, ...]
    batch_size: int
    device: Device
    shares_devices: bool = False
    nodes: tuple[PlanNode, ...]
    payload_bytes_per_step: int
    payload_matrix: tuple[tuple[int, ...], ...]
    pull_matrix: tuple[tuple[int, ...], ...] = ()
    server_bytes: tuple[int, ...]
    worker_bytes: int
    statistics: tuple[StatisticSummary, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()

    @property
    def execution(self) -> Execution:
        """How its steps go."""
        return Execution.of(self.strategy_params)

    @property
    def aggregation(self) -> Aggregation | None:
        """The rule by which it combines workers' gradients; None where it adds them up."""
        return Aggregation.of(self.strategy_params, len(self.replicas_per_task))

    @property
    def sparse_duplicates(self) -> SparseDuplicates | None:
        """Treatment of rows of equal ids: `kept` if any variable's are; None without sparse gradients."""
        there = {node.sparse_duplicates for node in self.nodes}
        return next((each for each in get_args(SparseDuplicates) if each in there), None)

    @property
    def payload_phases(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Payload matrices of what comes one after the other in a step; they add up to the payload.

        Where all wait for all, no server sends a value back before it has all gradients of the step before.
        """
        if not self.pull_matrix or not self.execution.waits_for_all:
            return (self.payload_matrix,)
        rows = zip(self.payload_matrix, self.pull_matrix, strict=True)
        return tuple(tuple(map(operator.sub, *both)) for both in rows), self.pull_matrix


def mistake(error: ValidationError) -> str:
    """The first thing wrong with a document, in one line: where it is, the rule, and what was received."""
    first = error.errors(include_url=False)[0]
    path = ".".join(str(piece) for piece in first["loc"])
    rule = first["msg"][:1].lower() + first["msg"][1:]
    return f"{path}: {rule}, got {first['input']!r:.80}"
