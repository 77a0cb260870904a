"""Comparison of a compressed strategy's losses with its compressors' bounds, in one process.

The strategy runs its steps first; its boundaries' values and its compressors' residuals after each step are
stored. Then the reference runs the same steps: its shards' gradients are the compressors' inputs, and it
updates with the values that the strategy's boundaries passed on. So the loss in each step is compared with
that step's bound, and everything else with the tolerance of rounding.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

import numpy as np

from harness.verification.differences import NOISE_FACTOR, widened
from harness.verification.reference import STEP_FACTOR, Gradient, Outcome
from harness.verification.verdict import (
    BEYOND_ROUNDING,
    DECIDABLE_SHARE,
    DECIDABLE_TOLERANCE,
    FLOAT64_EPS,
    BoundFigure,
    BoundVerdict,
    Verdict,
    named,
)
from harness.verification.worker.boundary_values import GradientCrossing, crossings_of, norm_of, passed_on
from harness.verification.worker.in_process import InProcessCluster
from harness.verification.worker.rounding import PLAIN, Crossed, Rounding, weights_of
from harness.worker.session.capture_store import InitialValues
from harness.worker.session.session import WorkerSession
from harness.worker.variable_parts import Array, Copy, Pieces, joined, of_part
from strategies.compile import compile_tasks
from strategies.ir.train_graph import Boundary, TrainGraph
from strategies.ir.variable import Part
from strategies.numerics.compressors import RESIDUAL, Cast, Codec, Feedback, codec_of
from strategies.plan.schema import Plan, PlanNode
from strategies.planner import topology_of
from strategies.topology import Shard, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedSteps:
    """Steps of a compressed strategy.

    Attributes:
        passed: for each step, values that boundaries passed on to updates: parts of each compressed gradient.
        residuals: compressors' residuals by name and rank, before the first step and after each.
        outcome: global losses, and variables after the last step.
    """

    passed: Sequence[Mapping[Gradient, Pieces]]
    residuals: Sequence[Mapping[Copy, Array]]
    outcome: Outcome


def compressed_steps(
    step: TrainGraph, initial: InitialValues, plan: Plan, batches: Sequence[Sequence[Array]]
) -> CompressedSteps:
    """Run the steps of a compressed strategy, with all workers in this process."""
    compiled = compile_tasks(step, plan, range(topology_of(plan).n_tasks))
    steps = [rewritten.step for rewritten in compiled]
    compressed = {node.variable for node in plan.nodes if node.compressor is not None}
    crossings = [
        [crossing for crossing in crossings_of(s) if crossing.gradient[0] in compressed] for s in steps
    ]
    passed, losses = [], []
    with InProcessCluster([rewritten.program for rewritten in compiled], initial) as cluster:
        values = cluster.read()
        residuals = [_residuals(values)]
        for batch in batches:

            def one(session: WorkerSession, batch: Sequence[Array] = batch) -> tuple[list[Array], float]:
                task = session.program.task
                return passed_on(
                    session, steps[task], batch, [crossing.boundary for crossing in crossings[task]]
                )

            by_task = cluster.each(one)
            passed.append(_gathered(crossings, [values for values, _ in by_task]))
            losses.append(sum(loss for _, loss in by_task))
            values = cluster.read()
            residuals.append(_residuals(values))
    return CompressedSteps(passed=passed, residuals=residuals, outcome=Outcome(values=values, losses=losses))


def _residuals(values: Mapping[Copy, Array]) -> dict[Copy, Array]:
    return {copy: value for copy, value in values.items() if copy[0].endswith(f"/{RESIDUAL}")}


def _gathered(
    crossings: Sequence[Sequence[GradientCrossing]], values: Sequence[Sequence[Array]]
) -> dict[Gradient, Pieces]:
    pieces: dict[tuple[Gradient, int | None], dict[int, tuple[Part | None, Array]]] = {}
    for of_task, own in zip(crossings, values, strict=True):
        for crossing, value in zip(of_task, own, strict=True):
            of_copy = pieces.setdefault((crossing.gradient, crossing.copy), {})
            of_copy.setdefault(crossing.part.start if crossing.part else 0, (crossing.part, value))
    first: dict[Gradient, Pieces] = {}
    for (gradient, _), copies in pieces.items():
        first.setdefault(gradient, list(copies.values()))
    return first


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loss:
    step: int
    figure: BoundFigure
    scale: float


@dataclass(slots=True, kw_only=True)
class BoundMeter:
    """Measures a compressed strategy's losses during the reference's steps, which continue with its sums."""

    step: TrainGraph
    plan: Plan
    compressed: CompressedSteps
    eps: float
    _losses: dict[Gradient, list[_Loss]] = field(default_factory=dict)
    _totals: dict[tuple[Gradient, int], Array] = field(default_factory=dict)
    _floors: dict[tuple[Gradient, int], float] = field(default_factory=dict)

    def combine(
        self, rounding: Rounding, n: int, shards: Sequence[Shard], crossed: Sequence[Mapping[str, Crossed]]
    ) -> dict[str, Crossed]:
        """Values for the updates of step n in place of exact sums, by boundary."""
        topology = topology_of(self.plan)
        nodes = {node.variable: node for node in self.plan.nodes if node.compressor is not None}
        passed: dict[str, Crossed] = {}
        for crossing in crossings_of(self.step):
            gradient, b = crossing.gradient, crossing.boundary
            node = nodes.get(b.variable)
            if node is None or gradient not in self.compressed.passed[n]:
                continue
            contributions = _contributions(b, _members(node, topology), shards, crossed)
            if rounding is PLAIN:
                self._measure(gradient, n, node, contributions)
            else:
                apart = norm_of(sum(contributions.values()) - self._totals[gradient, n])
                self._floors[gradient, n] = max(self._floors.get((gradient, n), 0.0), apart)
            kind = crossed[0][b.values][0].dtype
            passed[b.values] = (joined(self.compressed.passed[n][gradient]).astype(kind), None)
        return passed

    def verdict(self, given_sums: Verdict) -> BoundVerdict:
        hidden: dict[tuple[Gradient, int], None] = {}
        beyond: list[BoundFigure] = []
        for gradient, losses in self._losses.items():
            n_steps = len(self.compressed.passed)
            for loss in losses:
                slack = (
                    NOISE_FACTOR * self._floors.get((gradient, loss.step), 0.0)
                    + STEP_FACTOR * n_steps * self.eps * loss.scale
                )
                if not isfinite(slack) or slack > DECIDABLE_TOLERANCE * loss.scale:
                    hidden[gradient, loss.step] = None
                    # Rounding may hide losses, but not losses larger than any rounding.
                    slack *= BEYOND_ROUNDING
                if isfinite(slack) and not loss.figure.error <= loss.figure.bound + slack:
                    beyond.append(loss.figure)
        undecidable = tuple(dict.fromkeys([*(name for (name, _), _ in hidden), *given_sums.undecidable]))
        if beyond:
            reason = f"{beyond[0].where} lost {beyond[0].error:.3g}, the bound is {beyond[0].bound:.3g}"
            return BoundVerdict(within=False, reason=reason, undecidable=undecidable, worst=beyond[0])
        if given_sums.equivalent is not True:
            return BoundVerdict(
                within=given_sums.equivalent,
                reason=f"beside what is compressed, {given_sums.reason}",
                undecidable=undecidable,
            )
        return self._judged(hidden, undecidable)

    def _judged(self, hidden: Collection[tuple[Gradient, int]], undecidable: tuple[str, ...]) -> BoundVerdict:
        """Verdict if nothing is wrong, by the share of elements that rounding does not hide.

        Args:
            hidden: gradients and steps in which rounding hides them; other steps may show them.
        """
        n_elements = sum(total.size for total in self._totals.values())
        share = 1 - sum(self._totals[gradient].size for gradient in hidden) / max(1, n_elements)
        if share >= DECIDABLE_SHARE:
            figures = [loss.figure for losses in self._losses.values() for loss in losses]
            bounded = [figure for figure in figures if figure.bound > 0.0]
            worst = max(bounded, key=lambda figure: figure.error / figure.bound, default=None)
            return BoundVerdict(within=True, reason=None, undecidable=undecidable, worst=worst)
        way_out = "; verify with --dtype float64" if self.eps > FLOAT64_EPS else ""
        return BoundVerdict(
            within=None,
            reason=f"only {100 * share:.3g} % of the elements of compressed gradients can be judged: "
            f"rounding leaves nothing of {named(undecidable)}{way_out}",
            undecidable=undecidable,
        )

    def _measure(
        self, gradient: Gradient, n: int, node: PlanNode, contributions: Mapping[int, Array]
    ) -> None:
        assert node.compressor is not None
        name, place = gradient
        self._totals[gradient, n] = np.asarray(sum(contributions.values()))
        codec = codec_of(node.compressor, n_terms=1 if node.synchronizer == "ps" else len(contributions))
        memory = f"compressor/{name}{f'__{place}' if place else ''}/{RESIDUAL}"
        meant, after_step = contributions, {}
        if isinstance(codec, Feedback):
            before, after = self.compressed.residuals[n], self.compressed.residuals[n + 1]
            meant = {rank: own + before[memory, rank] for rank, own in contributions.items()}
            after_step = {rank: after[memory, rank] for rank in contributions}
        scale = sum(map(norm_of, meant.values()))
        for part, passed in self.compressed.passed[n][gradient]:
            where = ("" if part is None else f"part {part.index} of ") + f"{name} in step {n + 1}"
            self._losses.setdefault(gradient, []).extend(
                _losses(codec, n, where, passed, _of_part(meant, part), _of_part(after_step, part), scale)
            )


def _losses(
    codec: Codec,
    n: int,
    where: str,
    passed: Array,
    meant: Mapping[int, Array],
    after_step: Mapping[int, Array],
    scale: float,
) -> Iterator[_Loss]:
    """Losses of a gradient or of a part of it.

    Args:
        passed: decoded combination of all members' values.
        meant: rank → value to send. after_step: rank → its residual, for codecs with error feedback.
        scale: size of the whole gradient, relative to which rounding is measured.
    """
    inner = codec.codec if isinstance(codec, Feedback) else codec
    sent = list(meant.values())
    bound = inner.sum_bound(sent) if isinstance(inner, Cast) else 0.0
    for rank, own in meant.items():
        if rank not in after_step:
            bound += codec.loss_bound(own)
            continue
        # Residuals are not lost: only additions on the wire lose precision.
        yield _Loss(
            step=n,
            figure=BoundFigure(
                where=f"{where} on replica {rank}",
                error=norm_of(after_step[rank]),
                bound=codec.loss_bound(own),
            ),
            scale=scale,
        )
    error = norm_of(passed + sum(after_step.values()) - sum(sent))
    yield _Loss(step=n, figure=BoundFigure(where=f"{where}, summed,", error=error, bound=bound), scale=scale)


def _of_part(by_rank: Mapping[int, Array], part: Part | None) -> dict[int, Array]:
    return {rank: of_part(value, part) for rank, value in by_rank.items()}


def _members(node: PlanNode, topology: Topology) -> Mapping[int, int]:
    """Replica → rank of the member that encodes its contribution: itself, or the first of its worker."""
    if node.synchronizer in ("ps", "hierarchical-all-reduce"):
        return {r.rank: topology.local_replicas(r.task)[0].rank for r in topology.replicas()}
    return {r.rank: r.rank for r in topology.replicas()}


def _contributions(
    b: Boundary,
    member_of: Mapping[int, int],
    shards: Sequence[Shard],
    crossed: Sequence[Mapping[str, Crossed]],
) -> dict[int, Array]:
    """Each member's part of the global mean or sum, by rank."""
    contributions: dict[int, Array] = {}
    for shard, weight, own in zip(shards, weights_of(shards, b.rule), crossed, strict=True):
        member = member_of[shard.replica.rank]
        value = widened(own[b.values][0]) * weight
        contributions[member] = contributions[member] + value if member in contributions else value
    return contributions
