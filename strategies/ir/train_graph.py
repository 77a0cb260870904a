"""A training step as passes see it: the graph, its boundaries, update regions and exchanges."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from strategies.ir.graph import DType, Graph, Shape, producer
from strategies.ir.variable import Rule, Variable

BEFORE_ALL = 0
"""Level of values that are sent before anything crosses a boundary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Tensor [outer, length, inner] whose slices along its middle axis belong to several workers.

    Attributes:
        sizes: length of each slice. tasks: task to which each belongs.
        first: number of the first slice among all slices of a transfer, the same on all workers.
        vector: number of the vector in which a worker hands over the tensor or receives it, behind the blocks
            before it; None for a tensor that stays where it is, because its worker has it.
    """

    outer: int = 1
    inner: int = 1
    sizes: tuple[int, ...]
    tasks: tuple[int, ...]
    first: int = 0
    vector: int | None = 0

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.outer, sum(self.sizes), self.inner


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One exchange between all workers: each sends, continues, and takes the result when it needs it.

    Attributes:
        name: name of the exchange, the same on all workers.
        kind: `sum` on all workers; `scatter`, one share of a sum per worker; `gather` of all workers' shares;
            `concatenate` of vectors whose lengths are known only at run time, in task order.
        blocks: tensors that a worker hands to a scatter, or receives from a gather or has already; empty for
            `sum` and `concatenate`. A worker's share consists of its slices by number. Workers may join
            slices to different blocks.
        level: level of the boundary or update; `BEFORE_ALL` for values that the forward pass starts with.
        wire: type of a sum's values on the network; None for their own type.
        factor: factor on the complete sum.
    """

    name: str
    kind: Literal["sum", "scatter", "gather", "concatenate"] = "sum"
    blocks: tuple[Block, ...] = ()
    level: int = 1
    wire: DType | None = None
    factor: float = 1.0

    @property
    def given_token(self) -> str:
        return f"{self.name}/given"

    @property
    def taken_token(self) -> str:
        return f"{self.name}/taken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """Contribution of one or several shards to a boundary.

    Attributes:
        values: tensor of a dense gradient, or of a sparse one's rows; `indices` are the row ids.
        weight: factor that turns it into its part of the global mean or sum; 1 if already applied.
        total: tensor of the sum over all replicas of all tasks.
    """

    rank: int
    values: str
    indices: str | None
    weight: float
    total: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """Point at which a replica's value becomes global: a gradient, new state, or an updated variable.

    The update reads the identity `values` (and `indices`); synchronisation replaces its input.

    Attributes:
        rule: `mean`, `sum` or `first-replica`; for gradients, the loss's reduction.
        merged: True if the update sums rows of equal ids, so that they may be summed before the boundary.
        rank: replica whose copy of the variable is updated; None if all replicas share one.
        contributions: shards' contributions; empty before replication.
        level: number of boundaries on the longest path up to this one, with updates between them.
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


Reduction: TypeAlias = Literal["mean", "sum"]
"""Reduction of examples' losses to a loss, and of shards' losses to the global batch's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistic:
    """Mean over a shard's examples that can be replaced by the whole batch's, or the gradient of such a mean.

    `passes/collectives/batch_norm.py` explains the exchange.

    Attributes:
        layer: path of its layer.
        node: identity that the step reads; synchronisation replaces its input.
        level: number of statistics on the longest path up to this one.
        rank: replica that owns the copy; None in a captured step.
    """

    layer: str
    node: str
    dtype: DType
    shape: Shape
    level: int = 1
    backward: bool = False
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRegion:
    """Nodes that turn a variable's aggregated gradient into its new value and slots.

    Attributes:
        nodes: nodes in graph order, without those of `TrainGraph.shared_update`.
        targets: assignments that a step runs.
        rank: replica whose copy of the variable is updated; None if all replicas share one.
        level: level of the preceding boundaries.
    """

    variable: str
    nodes: tuple[str, ...]
    targets: tuple[str, ...]
    rank: int | None = None
    level: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateValue:
    """A value of the shared update that replicas' own updates read or wait for.

    Attributes:
        node: identity node, which replicas on every task read.
        level: level of the preceding boundaries.
    """

    node: str
    dtype: DType
    level: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchInput:
    """Placeholder that is fed with examples along axis 0.

    Attributes:
        path: position in the dataset's structure, `0`, `1/image`…
        shape: shape with the batch axis first, -1 if its length is free.
    """

    path: str
    node: str
    dtype: DType
    shape: Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One shard's scalar loss; `weight` makes it its part of the global loss."""

    tensor: str
    reduction: Reduction = "mean"
    weight: float = 1.0


ResultRule: TypeAlias = Literal["mean", "sum", "concatenate", "per-replica"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Value that one shard's step returns in addition to its loss.

    Attributes:
        name: key or position in the returned structure.
        rule: rule that combines shards' results into the global batch's; `per-replica` keeps them apart.
        weight: the shard's share of the global batch.
    """

    name: str
    tensor: str
    rule: ResultRule
    rank: int = 0
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainGraph:
    """A training step and the meaning of its parts; capture makes it, passes rewrite it.

    Attributes:
        shared_update: nodes that several regions need (a learning rate, a global norm), in graph order.
        update_values: values of the shared update that replicas' own updates use.
        readiness: trainable → position in the order in which the backward pass produces gradients.
        state_targets: forward assignments and checks that a step runs, and gradients that only visible
            effects use.
        effects: printing and summary nodes, which one replica runs.
        step_targets: further nodes that a step runs (synchronisation).
        tables: initializers of lookup tables, run once before the first step.
        setup: further nodes that this task runs once before the first step.
        background: nodes that run together beside each step, or repeatedly if `n_taken` is set.
        n_taken: tensor with the number of contributions in one background update.
        progress: tensor [2]: the step that this task has reached, and 1 if its contribution was late; None if
            every step is made and every contribution counts.
        transfers: exchanges by the workers' own transport, in the same order on every worker.
        savers: saver nodes, which pruning keeps and no step runs.
        own_statistics: layer → reason why its statistics stay local to a shard.
        synchronized: layers whose author requests statistics of the global batch.
        results: values that the step returns, fetched on request; timed steps do not fetch them.
        steps_per_run: maximum number of steps per run, with stacked batches and losses; None if a run is one
            step.
        reshard_counts: per replica, tensor of `COUNTS` and `GAUGES` of `strategies.numerics.resharding`.
        aggregation_counts: per level of robust gradients, int64 [3, n_workers]: steps with the worker in the
            result, steps in which its vector was not finite, all steps.
        notes: sentences for the user about this capture or strategy.
    """

    graph: Graph
    variables: tuple[Variable, ...]
    boundaries: tuple[Boundary, ...]
    regions: tuple[UpdateRegion, ...]
    batch: tuple[BatchInput, ...]
    losses: tuple[Loss, ...]
    shared_update: tuple[str, ...] = ()
    state_targets: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()
    step_targets: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    background: tuple[str, ...] = ()
    n_taken: str | None = None
    progress: str | None = None
    transfers: tuple[Transfer, ...] = ()
    savers: tuple[str, ...] = ()
    update_values: tuple[UpdateValue, ...] = ()
    statistics: tuple[Statistic, ...] = ()
    own_statistics: Mapping[str, str] = field(default_factory=dict)
    synchronized: tuple[str, ...] = ()
    readiness: Mapping[str, int] = field(default_factory=dict)
    results: tuple[Result, ...] = ()
    steps_per_run: int | None = None
    reshard_counts: tuple[str, ...] = ()
    aggregation_counts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def gradients(self) -> tuple[Boundary, ...]:
        return tuple(b for b in self.boundaries if b.role == "gradient")

    def ready(self, variables: Iterable[str]) -> int:
        """Latest position of these variables in the order of the backward pass; -1 for forward state."""
        return max((self.readiness.get(name, -1) for name in variables), default=-1)

    @property
    def n_levels(self) -> int:
        return max((b.level for b in self.boundaries), default=1)

    def joint_statistics(self, *, every_layer: bool) -> tuple[Statistic, ...]:
        return tuple(s for s in self.statistics if every_layer or s.layer in self.synchronized)

    def update_nodes(self) -> set[str]:
        return {name for region in self.regions for name in region.nodes}.union(self.shared_update)

    def returned(self) -> tuple[str, ...]:
        tensors = [*(loss.tensor for loss in self.losses), *(result.tensor for result in self.results)]
        return tuple(map(producer, tensors))

    def targets(self) -> tuple[str, ...]:
        updates = (target for region in self.regions for target in region.targets)
        targets = dict.fromkeys((*self.state_targets, *updates, *self.effects, *self.step_targets))
        return tuple(target for target in targets if target not in self.background)

    def roots(self) -> tuple[str, ...]:
        """Every node that something outside the graph refers to."""
        crossing = ((b.values, b.indices) for b in self.boundaries)
        contributed = ((c.values, c.indices) for b in self.boundaries for c in b.contributions)
        boundary = (producer(ref) for refs in (*crossing, *contributed) for ref in refs if ref is not None)
        access = (n for v in self.variables for n in v.access)
        counted = (self.n_taken, self.progress, *self.reshard_counts, *self.aggregation_counts)
        counts = (producer(ref) for ref in counted if ref is not None)
        fed = (b.node for b in self.batch)
        run = (*self.targets(), *self.tables, *self.setup, *self.background)
        return tuple(dict.fromkeys((*run, *boundary, *access, *self.returned(), *counts, *fed, *self.savers)))
