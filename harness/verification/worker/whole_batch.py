"""One step on the whole global batch in float64, and the same step on its shards.

Both begin with the initial values and get the same random numbers: those of the whole batch are drawn once,
and each shard is fed with its part of them.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import tensorflow as tf

from harness.verification.separability import (
    Crossing,
    Differences,
    Noise,
    Separability,
    Totals,
    WayOut,
    judge,
    part_of_draw,
    unknown,
)
from harness.verification.verdict import named
from harness.verification.worker.rounding import (
    PLAIN,
    VARIATIONS,
    RoundedSums,
    Rounding,
    coarsest_eps,
    shares,
)
from harness.verification.worker.shard_steps import JointStatistics, ShardSteps
from harness.worker.session.capture_store import InitialValues, in_float64
from harness.worker.variable_parts import Array
from strategies.errors import StrategyError
from strategies.ir.graph import producer
from strategies.ir.random_ops import draws_of
from strategies.ir.train_graph import Reduction, TrainGraph
from strategies.ir.traversal import ancestors
from strategies.tf_bridge.float64 import step_in_float64
from strategies.tf_bridge.op_types import computed_types
from strategies.topology import Topology
from strategies.user_errors import graph_error


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Forward and backward passes of a step on a batch, whole or in shards, all from the initial values.

    Attributes:
        steps: steps of the topology with the most shards.
        topology: topology whose shards are compared with the whole batch.
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
        return self.of(1)

    @property
    def reduction(self) -> Reduction:
        return self.step.losses[0].reduction

    def of(self, n_shards: int) -> Topology:
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
            fed: rank of a shard → tensors that it takes as inputs instead of computing them.
            reduction: combination of shards; that of the step by default.
            eps: rounding unit of the coarsest dtype in the forward and backward pass.
        """
        rule = reduction or self.reduction
        if rule != self.reduction and self.step.n_levels > 1:
            # A shard's later gradients depend on the combination of its earlier ones.
            other = _with_reduction(self.step, rule)
            with ShardSteps(other, self.initial, topology) as steps:
                return replace(self, steps=steps, step=other).totals(topology, fed, rule, rounding, eps)
        self.steps.begin(rounding, eps, topology=topology, fed=fed)
        self.steps.rounded_crossing(self.batch)
        sums, shards = RoundedSums(rounding), topology.shards()
        crossed = []
        for b in _with_reduction(self.step, rule).boundaries:
            sent = [shard_values[b.values] for shard_values in self.steps.crossed]
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
        if not tensors:
            return [{} for _ in topology.shards()]
        self.steps.begin(PLAIN, topology=topology)
        return self.steps.values(self.batch, tensors)


def _with_reduction(step: TrainGraph, reduction: Reduction) -> TrainGraph:
    return replace(
        step,
        boundaries=tuple(replace(b, rule=reduction) if b.role == "gradient" else b for b in step.boundaries),
        losses=tuple(replace(loss, reduction=reduction) for loss in step.losses),
    )


def tallied(step: TrainGraph) -> set[str]:
    """Forward state that a step adds to, but never reads, neither forward nor in its updates."""
    shapes = {node.name for node in step.graph.nodes if node.op == "VariableShape"}
    updates = [target for region in step.regions for target in region.targets]
    needed = ancestors(step.graph, forward_results(step), stop=shapes)
    needed |= ancestors(step.graph, updates, stop=shapes, control=False)
    return {v.name for v in step.variables if v.rule == "sum" and v.handle not in needed}


def forward_results(step: TrainGraph) -> list[str]:
    """Nodes of the loss, and of values that cross boundaries."""
    by_name = step.graph.by_name
    crossing = [n for b in step.boundaries for n in (b.values, b.indices) if n is not None]
    return [producer(step.losses[0].tensor), *(producer(by_name[name].inputs[0]) for name in crossing)]


_FEW = 2
_SHUFFLE = "RandomShuffle"
_SHARE_STATISTICS = WayOut(cause="batch normalisation", remedy="sync_batch_norm=true makes both agree")
_TAKE_THE_MEAN = WayOut(
    cause="each shard counts terms such as a regularisation again",
    remedy="take the mean over examples instead of the sum",
)


def separability_of(
    step: TrainGraph, initial: InitialValues, topology: Topology, batch: Sequence[Array]
) -> Separability:
    """Compare the shards of a batch with the step on the whole batch.

    Args:
        step: captured step, in its own types.
        initial: initial values, in float64.
        batch: global batch, in any floating type.
    Raises:
        UsageError: the loss is a sum over examples, but not declared as one, or the other way round.
    """
    topology = replace(topology, batch_size=len(batch[0]))
    if topology.n_shards == 1:
        return Separability(separable=True, explanation="the only shard is the whole batch")
    dims = [b.shape.dims[0] for b in step.batch if b.shape.dims]
    fixed = next((n for n in dims if n not in (-1, topology.batch_size)), None)
    if fixed is not None:
        return unknown(
            f"the model takes {fixed} examples at a time, and the batch has {topology.batch_size}; leave the "
            "batch axis of its inputs free"
        )
    draws = draws_of(step.graph, forward_results(step))
    if draws.hidden:
        return unknown(
            f"{named(draws.hidden)} draws random numbers in a nested function or loop, where shards cannot "
            "get those of the whole batch; draw them outside"
        )
    try:
        return _measured(
            _forward_alone(step_in_float64(step)),
            initial,
            topology,
            [in_float64(part) for part in batch],
            draws.tensors,
            tallied(step),
        )
    except StrategyError as error:
        return unknown(str(error))
    except tf.errors.OpError as error:
        return unknown(f"running the whole batch or a shard in float64 failed: {graph_error(error.message)}")


def _measured(
    step: TrainGraph,
    initial: InitialValues,
    topology: Topology,
    batch: Sequence[Array],
    random: Sequence[str],
    tallies: Collection[str],
) -> Separability:
    # Shards are fed with statistics, rather than combining their own level by level.
    joint = step.joint_statistics(every_layer=topology.global_statistics)
    step, topology = replace(step, synchronized=()), replace(topology, global_statistics=False)
    source = {s.node: step.graph.by_name[s.node].inputs[0] for s in step.statistics}
    beside = list(dict.fromkeys((*random, *source.values())))
    with ShardSteps(step, initial, _widest(topology), beside=beside) as steps:
        passes = Passes(
            steps=steps, step=step, initial=initial, topology=topology, batch=batch, tallies=tallies
        )
        whole = passes.totals(passes.whole, {})
        if not whole.is_finite():
            return unknown("the loss or a gradient of the whole batch is not finite in float64")
        values = steps.beside[0]
        drawn = {name: values[name] for name in random}
        parts, unfit = _parts(drawn, passes.values(topology, random), topology)
        if unfit:
            return unknown(
                f"{named(unfit)} draws random numbers without an axis of examples, so that shards cannot get "
                "their part of those of the whole batch"
            )
        mixing = [name for name in _of_examples(drawn, parts[0]) if step.graph.by_name[name].op == _SHUFFLE]
        if mixing:
            return unknown(
                f"{named(mixing)} shuffles the examples of the batch, and a shard can only shuffle its own; "
                "shuffle in the dataset if the loss does not pair examples"
            )
        # If shards are equivalent to the batch, their combined statistics are the whole batch's.
        statistics = {node: values[tensor] for node, tensor in source.items()}
        comparison = _Comparison(
            passes=passes,
            drawn=drawn,
            parts=parts,
            statistics=statistics,
            shared={s.node: statistics[s.node] for s in joint},
            whole=whole,
        )
        separability = comparison.separability()
    doubtful = _doubtful(drawn, parts[0], topology.batch_size)
    if separability.separable is not False or not doubtful:
        return separability
    return unknown(
        f"they differ, and the random numbers of {named(doubtful)} cannot be assigned to examples; draw them "
        "with an axis of examples"
    )


def _widest(topology: Topology) -> Topology:
    """The topology, or one with the largest number of shards to compare."""
    enough = topology.n_shards > _FEW or topology.batch_size <= _FEW
    return topology if enough else replace(topology, replicas_per_task=(_FEW + 1,), micro_batches=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    passes: Passes
    drawn: Mapping[str, Array]
    parts: Mapping[int, Mapping[str, Array]]
    statistics: Mapping[str, Array]
    shared: Mapping[str, Array]
    whole: Totals

    def separability(self) -> Separability:
        reduction, topology = self.passes.reduction, self.passes.topology
        declared = self._of_shards(reduction, self.shared)
        ways_out: dict[WayOut, Callable[[], Differences]] = {}
        step = self.passes.step
        refused = topology.micro_batches > 1 or step.own_statistics
        if len(self.shared) < len(self.statistics) and not refused:
            ways_out[_SHARE_STATISTICS] = partial(self._of_shards, reduction, self.statistics)
        if not self.drawn and topology.batch_size > _FEW:
            ways_out[_TAKE_THE_MEAN] = self._without_what_shards_repeat
        return judge(
            declared,
            Noise(self._noise()),
            partial(self._of_shards, "mean" if reduction == "sum" else "sum", self.shared),
            ways_out,
            reduction=reduction,
            n_shards=topology.n_shards,
        )

    def _noise(self) -> Iterator[Differences]:
        eps = coarsest_eps(computed_types(self.passes.step))
        for variation in VARIATIONS:
            totals = self.passes.totals(self.passes.whole, {0: self.drawn}, None, variation, eps)
            yield Differences.of(self.whole, totals)

    def _without_what_shards_repeat(self) -> Differences:
        many = max(_FEW + 1, min(self.passes.topology.n_shards, self.passes.topology.batch_size))
        of_few, of_many = (self._totals(self.passes.of(n), "sum", self.shared) for n in (_FEW, many))
        return Differences.of(self.whole, Totals.of_one_shard(of_few, _FEW, of_many, many))

    def _of_shards(self, reduction: Reduction, shared: Mapping[str, Array]) -> Differences:
        return Differences.of(self.whole, self._totals(self.passes.topology, reduction, shared))

    def _totals(self, topology: Topology, reduction: Reduction, shared: Mapping[str, Array]) -> Totals:
        step, shards = self.passes.step, topology.shards()
        joint = JointStatistics(_with_reduction(step, reduction), step.statistics)
        fed = {
            shard.rank: {**self.parts.get(shard.rank, {}), **joint.of_shard(share, shared)}
            for shard, share in zip(shards, shares(shards), strict=True)
        }
        return self.passes.totals(topology, fed, reduction)


def _parts(
    drawn: Mapping[str, Array], own: Sequence[Mapping[str, Array]], topology: Topology
) -> tuple[dict[int, dict[str, Array]], list[str]]:
    """Rank of a shard → its part of the whole batch's draws; and the nodes whose draws have no parts.

    Args:
        own: draws of each shard by itself.
    """
    parts: dict[int, dict[str, Array]] = {}
    unfit: dict[str, None] = {}
    for shard, draws in zip(topology.shards(), own, strict=True):
        parts[shard.rank] = {}
        for name, value in drawn.items():
            part = part_of_draw(value, draws[name].shape, shard, topology.batch_size)
            if part is None:
                unfit[producer(name)] = None
            else:
                parts[shard.rank][name] = part
    return parts, list(unfit)


def _doubtful(drawn: Mapping[str, Array], part: Mapping[str, Array], n_examples: int) -> list[str]:
    """Nodes whose draws have no axis of examples, but one that grows with their number."""
    return [node for node, shape in _of_examples(drawn, part).items() if n_examples not in shape]


def _of_examples(drawn: Mapping[str, Array], part: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    return {producer(name): value.shape for name, value in drawn.items() if part[name].shape != value.shape}


def _forward_alone(step: TrainGraph) -> TrainGraph:
    needed = ancestors(step.graph, forward_results(step))
    return replace(
        step,
        variables=tuple(v for v in step.variables if v.handle in needed or v.rule == "sum"),
        regions=(),
        shared_update=(),
        state_targets=(),
        effects=(),
        results=(),
        savers=(),
    )
