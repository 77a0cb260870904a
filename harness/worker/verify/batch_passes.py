"""Forward and backward of a step on a batch, whole or in shards, from the initial values each time."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.equivalence.batch_totals import Crossing, Totals
from harness.equivalence.yardstick import Array
from harness.worker.session.capture_store import InitialValues
from harness.worker.verify.rounding import PLAIN, RoundedSums, Rounding, shares
from harness.worker.verify.shard_steps import ShardSteps
from strategies.ir.graph import producer
from strategies.ir.train_graph import Reduction, TrainGraph
from strategies.ir.traversal import ancestors
from strategies.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Forward and backward passes of a step on a batch, whole or in shards, all from the initial values.

    Attributes:
        steps: of the widest topology.
        topology: whose shards are to be compared with the whole batch.
        tallies: see `tallied`.
    """

    steps: ShardSteps
    step: TrainGraph
    initial: InitialValues
    topology: Topology
    batch: Sequence[Array]
    tallies: Collection[str]

    @property
    def whole(self) -> Topology:
        """All examples in one shard."""
        return self.of(1)

    @property
    def reduction(self) -> Reduction:
        """How the loss is said to come of the examples' losses."""
        return self.step.losses[0].reduction

    def of(self, n_shards: int) -> Topology:
        """So many shards of one worker."""
        return replace(self.topology, replicas_per_task=(n_shards,), micro_batches=1)

    def totals(
        self,
        topology: Topology,
        fed: Mapping[int, Mapping[str, Array]],
        reduction: Reduction | None = None,
        rounding: Rounding = PLAIN,
        eps: float = 0.0,
    ) -> Totals:
        """Loss, gradients and new state of all shards together.

        Args:
            fed: rank of a shard → tensors that it takes instead of computing them.
            reduction: how shards are combined, as the step says unless given.
            eps: of the coarsest type that forward and backward compute in.
        """
        rule = reduction or self.reduction
        if rule != self.reduction and self.step.n_levels > 1:
            # What shards make of a later gradient depends on how those before were combined.
            other = _with_reduction(self.step, rule)
            with ShardSteps(other, self.initial, topology) as steps:
                return replace(self, steps=steps, step=other).totals(topology, fed, rule, rounding, eps)
        self.steps.begin(rounding, eps, topology=topology, fed=fed)
        self.steps.rounded_crossing(self.batch)
        sums, shards = RoundedSums(rounding), topology.shards()
        crossed = []
        for b in _with_reduction(self.step, rule).boundaries:
            sent = [each[b.values] for each in self.steps.crossed]
            values, rows = sums.of_boundary(b, sent, shards)
            role = "tally" if b.variable in self.tallies else b.role
            crossed.append((role, Crossing(variable=b.variable, values=values, rows=rows)))
        return Totals(
            loss=sums.of_losses(self.steps.losses, shards, rule),
            gradients=tuple(c for role, c in crossed if role == "gradient"),
            state=tuple(c for role, c in crossed if role == "state"),
            tallies=tuple(c for role, c in crossed if role == "tally"),
        )

    def values(self, topology: Topology, tensors: Sequence[str]) -> list[dict[str, Array]]:
        """What each shard makes of some tensors by itself."""
        if not tensors:
            return [{} for _ in topology.shards()]
        self.steps.begin(PLAIN, topology=topology)
        return self.steps.values(self.batch, tensors)

    def with_statistics(
        self,
        topology: Topology,
        parts: Mapping[int, Mapping[str, Array]],
        shared: Mapping[str, Array],
        reduction: Reduction,
    ) -> dict[int, dict[str, Array]]:
        """Rank of a shard → all that it is fed with; statistics are in the scale of its loss.

        Args:
            parts: its random numbers. shared: statistics of the whole batch.
        """
        summed = {s.node for s in self.step.statistics if s.backward and reduction == "sum"}
        shards = topology.shards()
        return {
            shard.rank: {
                **parts.get(shard.rank, {}),
                **{node: value * share if node in summed else value for node, value in shared.items()},
            }
            for shard, share in zip(shards, shares(shards), strict=True)
        }


def _with_reduction(step: TrainGraph, reduction: Reduction) -> TrainGraph:
    """The step as if its loss came of examples in this way."""
    return replace(
        step,
        boundaries=tuple(replace(b, rule=reduction) if b.role == "gradient" else b for b in step.boundaries),
        losses=tuple(replace(loss, reduction=reduction) for loss in step.losses),
    )


def tallied(step: TrainGraph) -> set[str]:
    """Forward state that a step adds to and never reads, neither forward nor in its updates."""
    shapes = {node.name for node in step.graph.nodes if node.op == "VariableShape"}
    updates = [target for region in step.regions for target in region.targets]
    needed = ancestors(step.graph, made_by_forward(step), stop=shapes)
    needed |= ancestors(step.graph, updates, stop=shapes, control=False)
    return {v.name for v in step.variables if v.rule == "sum" and v.handle not in needed}


def made_by_forward(step: TrainGraph) -> list[str]:
    """Nodes of the loss, and of what crosses boundaries."""
    by_name = step.graph.by_name
    crossing = [n for b in step.boundaries for n in (b.values, b.indices) if n is not None]
    return [producer(step.losses[0].tensor), *(producer(by_name[name].inputs[0]) for name in crossing)]
