"""A training step as passes see it: the graph, and what its parts mean."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from strategies.ir.graph import DType, Graph, Shape, producer
from strategies.ir.variable import Rule, Variable

BEFORE_ALL = 0
"""The level of what travels before anything crosses a boundary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Something that all workers do together: each gives, goes on, and takes what comes when it needs it.

    Attributes:
        name: the same on all workers.
        kind: `sum`, of which everybody gets all; `scatter`, a sum of which each gets a share; `gather`, in
            which everybody gets the shares of all others; `concatenate`, in which everybody gets the vectors
            of all, one after the other by task, of lengths that only the step tells.
        shares: elements of each worker's share, by task; empty where nobody has a share.
        level: of the boundary that is crossed so, or of the update whose result travels; `BEFORE_ALL` of
            values that forward begins with.
        wire: type that the values of a sum have on their way; their own unless given.
        factor: what a sum is multiplied by once it is complete.
        contiguous: of a gather, whether a worker gets one vector of all shares by task, its own among them.
            The same bytes travel either way, so that workers may differ in it.
    """

    name: str
    kind: Literal["sum", "scatter", "gather", "concatenate"] = "sum"
    shares: tuple[int, ...] = ()
    level: int = 1
    wire: DType | None = None
    factor: float = 1.0
    contiguous: bool = False

    def comes(self, task: int, length: int) -> tuple[int, ...]:
        """Elements of each vector that comes to a worker.

        Those of a gather are one for each worker, its own empty, or one for all together.

        What is concatenated tells its lengths itself.

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
        """Of the call that gives a vector, or several, of a scatter one for each worker, and returns."""
        return f"{self.name}/given"

    @property
    def taken_token(self) -> str:
        """Of the call that waits for what comes: a vector.

        Of a gather that is not contiguous come the vectors of all others, of what is concatenated as many as
        were given.
        """
        return f"{self.name}/taken"


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


Reduction: TypeAlias = Literal["mean", "sum"]
"""How a loss comes of the examples' losses, and so the global batch's of its shards'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistic:
    """Where a shard's mean over its examples can become that of the whole batch, and so for its gradient.

    A forward value becomes the mean over shards, weighted by examples, which all shards then share; what
    comes back to it in each shard's backward pass is combined as the losses are.
    `passes/collectives/batch_norm.py` says why.

    Attributes:
        layer: whose it is, by path.
        node: an identity, which the rest of the step reads; synchronisation replaces what flows in.
        backward: it is what comes back.
        level: how many statistics it needs, one after the other, itself included; those of one level do not
            need each other.
        rank: the replica whose it is; None in a captured step.
    """

    layer: str
    node: str
    dtype: DType
    shape: Shape
    level: int
    backward: bool = False
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRegion:
    """What turns a variable's aggregated gradient into its new value and slots.

    Attributes:
        nodes: those that no other region needs, in graph order; the others are in `TrainGraph.shared_update`.
        targets: the assignments, which a step runs.
        rank: the replica whose copy of the variable is updated; None when all share one.
        level: of the boundaries that it follows; a variable has a region for each.
    """

    variable: str
    nodes: tuple[str, ...]
    targets: tuple[str, ...]
    rank: int | None = None
    level: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """A value of the one shared update that replicas' own updates read, or only wait for.

    Attributes:
        node: an identity, which replicas read on every task; only the updater's has the value by itself.
        level: of the boundaries that it follows.
    """

    node: str
    dtype: DType
    level: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchInput:
    """A placeholder that is fed with examples along axis 0.

    Attributes:
        path: position in the dataset's structure, `0`, `1/image`…
        shape: with the batch axis first, -1 where it is free.
    """

    path: str
    node: str
    dtype: DType
    shape: Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One shard's scalar loss.

    Attributes:
        reduction: how it comes of the losses of the shard's examples.
        weight: factor that turns it into its part of the global loss.
    """

    tensor: str
    reduction: Reduction = "mean"
    weight: float = 1.0


ResultRule: TypeAlias = Literal["mean", "sum", "concatenate", "per-replica"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one shard's step returns beside its loss.

    Attributes:
        name: key or position in what the step returns.
        rule: how the shards' results become the global batch's; `per-replica` leaves them as they are.
        rank: of the shard. weight: its share of the global batch.
    """

    name: str
    tensor: str
    rule: ResultRule
    rank: int = 0
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainGraph:
    """A training step and what its parts mean; what capture makes and every pass takes and returns.

    Attributes:
        shared_update: nodes that several regions need (a learning rate, a global norm), in graph order.
        handed: what replicas' own updates take from the update of shared variables; empty where all variables
            are shared or none is.
        readiness: name of trainable → its place in the order in which backward makes gradients ready.
        state_targets: nodes of the forward pass that a step must run (assignments of forward state, checks),
            and gradients that only what is shown takes.
        effects: nodes run only for what is seen outside (printing, summaries); one replica runs them.
        step_targets: further nodes that a step must run and that nothing above names (synchronisation).
        tables: initializer nodes of lookup tables, run once before the first step.
        setup: further nodes that this task runs once before the first step.
        background: nodes that this task runs together beside its steps: once beside each, or, with `taken`,
            over and over.
        taken: tensor of the number of contributions in an update that the background made; None without one.
        progress: tensor [2] of the step that this task has come to after a step, and whether its contribution
            came too late; None where every step is made and every contribution counts.
        transfers: what a transport of the worker's own moves, in the order of every worker.
        savers: nodes of savers, kept through pruning and never run by a step.
        statistics: of a shard's examples still, in forward and backward.
        own_statistics: layer → why its statistics can be those of a shard only.
        synchronized: layers whose author asks for statistics of the global batch.
        results: what steps return beside their losses; who wants them fetches them, timed steps do not.
        steps_per_run: most steps that are made in one run, whose batches and losses are then stacked along
            a first axis; None where a run is a step.
        reshard_counts: tensors of what each replica counts of its resharding, see
            `COUNTS` and `GAUGES` of
            `strategies.numerics.resharding`.
        aggregation_counts: tensors [3, n_workers], int64, one for each level of gradients that a rule
            combines: of each worker the steps whose result it had a part in, those in which what it sent
            was not finite, and all steps.
        notes: what a user should know about this capture or strategy, one sentence each.
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
    taken: str | None = None
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
        """The boundaries that gradients cross."""
        return tuple(b for b in self.boundaries if b.role == "gradient")

    def ready(self, variables: Iterable[str]) -> int:
        """When the last of these is ready to travel.

        Returns:
            its place in the order of backward; -1 of what is no gradient: forward state is ready before any.
        """
        return max((self.readiness.get(name, -1) for name in variables), default=-1)

    @property
    def n_levels(self) -> int:
        """How many boundaries are crossed one after the other."""
        return max((b.level for b in self.boundaries), default=1)

    def joint_statistics(self, *, every_layer: bool) -> tuple[Statistic, ...]:
        """The statistics that all shards take together: of the layers that ask for it, or of all."""
        return tuple(s for s in self.statistics if every_layer or s.layer in self.synchronized)

    def update_nodes(self) -> set[str]:
        """Every node of the update side."""
        return {name for region in self.regions for name in region.nodes}.union(self.shared_update)

    def returned(self) -> tuple[str, ...]:
        """Every node whose value a step may return."""
        tensors = [*(loss.tensor for loss in self.losses), *(result.tensor for result in self.results)]
        return tuple(map(producer, tensors))

    def targets(self) -> tuple[str, ...]:
        """Every node that one step runs, each once."""
        updates = (target for region in self.regions for target in region.targets)
        targets = dict.fromkeys((*self.state_targets, *updates, *self.effects, *self.step_targets))
        return tuple(target for target in targets if target not in self.background)

    def roots(self) -> tuple[str, ...]:
        """Every node that something outside the graph refers to; pruning keeps them and what they need."""
        crossing = ((b.values, b.indices) for b in self.boundaries)
        brought = ((c.values, c.indices) for b in self.boundaries for c in b.contributions)
        boundary = (producer(ref) for refs in (*crossing, *brought) for ref in refs if ref is not None)
        access = (n for v in self.variables for n in v.access)
        counted = (self.taken, self.progress, *self.reshard_counts, *self.aggregation_counts)
        counts = (producer(ref) for ref in counted if ref is not None)
        fed = (b.node for b in self.batch)
        run = (*self.targets(), *self.tables, *self.setup, *self.background)
        return tuple(dict.fromkeys((*run, *boundary, *access, *self.returned(), *counts, *fed, *self.savers)))
