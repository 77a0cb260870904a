"""A training step as passes see it: the graph, its boundaries, update regions and exchanges."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from strategies.ir.graph import DType, Graph, Shape, producer
from strategies.ir.variable import Rule, Variable

BEFORE_ALL = 0
"""The level of what travels before anything crosses a boundary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One exchange of all workers: each gives, continues, and takes the result when it needs it.

    Attributes:
        name: the same on all workers.
        kind: `sum` for everybody; `scatter`, a share of a sum each; `gather` of everybody's shares;
            `concatenate` of vectors whose lengths are known at run time, by task.
        shares: elements of each worker's share, by task; empty for sum and concatenate.
        level: of the boundary or update, `BEFORE_ALL` for values that forward starts with.
        wire: type of a sum's values in transit, by default their own.
        factor: multiplies a complete sum.
        contiguous: a gather delivers one vector of all shares by task; workers may differ in it.
    """

    name: str
    kind: Literal["sum", "scatter", "gather", "concatenate"] = "sum"
    shares: tuple[int, ...] = ()
    level: int = 1
    wire: DType | None = None
    factor: float = 1.0
    contiguous: bool = False

    def comes(self, task: int, length: int) -> tuple[int, ...]:
        """Elements of each vector that a worker receives.

        Args:
            length: of the first vector that it gave.
        """
        if self.contiguous:
            return (sum(self.shares),)
        if self.kind == "gather":
            return tuple(0 if k == task else n for k, n in enumerate(self.shares))
        return (length if self.kind == "sum" else self.shares[task],)

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
        weight: factor that makes it its part of the global mean or sum; 1 if applied already.
        total: sum over all replicas of all tasks.
    """

    rank: int
    values: str
    indices: str | None
    weight: float
    total: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """Point where a replica's value becomes everybody's: a gradient, new state, or an updated variable.

    The update reads the identity `values` (and `indices`); synchronisation replaces its input.

    Attributes:
        rule: mean, sum or first-replica; of gradients the loss's reduction.
        merged: rows of equal ids are summed behind the boundary, so they may be summed before it.
        rank: replica whose copy of the variable is updated; None if all share one.
        contributions: empty before replication.
        level: number of boundaries in sequence up to this one, with updates between them.
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
    """A shard's mean over its examples that can become the whole batch's, or the gradient of one.

    `passes/collectives/batch_norm.py` explains the exchange.

    Attributes:
        layer: path of its layer.
        node: identity that the step reads; synchronisation replaces its input.
        level: number of statistics in sequence up to this one.
        rank: replica of a copy; None in a captured step.
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
        nodes: in graph order, without `TrainGraph.shared_update`.
        targets: assignments, which a step runs.
        rank: replica whose copy of the variable is updated; None if all share one.
        level: of the boundaries before it.
    """

    variable: str
    nodes: tuple[str, ...]
    targets: tuple[str, ...]
    rank: int | None = None
    level: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """A value of the shared update that replicas' own updates read or wait for.

    Attributes:
        node: an identity, which replicas read on every task.
        level: of the boundaries before it.
    """

    node: str
    dtype: DType
    level: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchInput:
    """A placeholder fed with examples along axis 0.

    Attributes:
        path: position in the dataset's structure, `0`, `1/image`…
        shape: batch axis first, -1 if free.
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
    """A value that one shard's step returns beside its loss.

    Attributes:
        name: key or position in the returned structure.
        rule: how shards' results become the global batch's; `per-replica` leaves them.
        weight: share of the global batch.
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
        handed: values of the shared update that replicas' own updates take.
        readiness: trainable → position in the order in which backward makes gradients.
        state_targets: forward assignments and checks that a step runs, and gradients that only effects use.
        effects: printing and summaries, which one replica runs.
        step_targets: further nodes that a step runs (synchronisation).
        tables: initializers of lookup tables, run once before the first step.
        setup: further nodes that this task runs once before the first step.
        background: nodes run together beside each step, or, with `n_taken`, over and over.
        n_taken: tensor of the number of contributions in an update by the background.
        progress: tensor [2]: step that this task has reached, and whether its contribution was late; None if
            every step is made and every contribution counts.
        transfers: exchanges by the workers' own transport, in the same order on every worker.
        savers: nodes of savers, kept by pruning and never run by a step.
        own_statistics: layer → why its statistics stay its shard's.
        synchronized: layers whose author asks for statistics of the global batch.
        results: fetched on request; timed steps do not fetch them.
        steps_per_run: most steps in one run, with stacked batches and losses; None if a run is a step.
        reshard_counts: per replica, `COUNTS` and `GAUGES` of `strategies.numerics.resharding`.
        aggregation_counts: int64 [3, n_workers] per level of robust gradients: steps with the worker in the
            result, steps with a vector that was not finite, all steps.
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
    handed: tuple[Handed, ...] = ()
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
        """Latest position of these variables in the order of backward; -1 for forward state."""
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
        brought = ((c.values, c.indices) for b in self.boundaries for c in b.contributions)
        boundary = (producer(ref) for refs in (*crossing, *brought) for ref in refs if ref is not None)
        access = (n for v in self.variables for n in v.access)
        counted = (self.n_taken, self.progress, *self.reshard_counts, *self.aggregation_counts)
        counts = (producer(ref) for ref in counted if ref is not None)
        fed = (b.node for b in self.batch)
        run = (*self.targets(), *self.tables, *self.setup, *self.background)
        return tuple(dict.fromkeys((*run, *boundary, *access, *self.returned(), *counts, *fed, *self.savers)))
