"""The steps of a compressed strategy, and what crossed its boundaries in each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.equivalence.yardstick import Array, Copy, Gradient
from harness.worker.session.capture_store import InitialValues
from harness.worker.session.session import WorkerSession
from harness.worker.session.variable_parts import Pieces
from harness.worker.verify.boundary_values import GradientCrossing, crossings_of, passed_on
from harness.worker.verify.in_process import InProcessCluster
from strategies.compile import compile_tasks
from strategies.ir.train_graph import TrainGraph
from strategies.ir.variable import Part
from strategies.numerics.compressors import RESIDUAL
from strategies.plan.schema import Plan
from strategies.planner import topology_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedSteps:
    """What a compressed strategy did.

    Attributes:
        passed: of each step, what boundaries passed on to the updates, the parts of each gradient that is
            compressed.
        owed: what compressors owe, by name and rank, before the first step and after each.
        losses: global, of each step.
        values: the state after the last step.
    """

    passed: Sequence[Mapping[Gradient, Pieces]]
    owed: Sequence[Mapping[Copy, Array]]
    losses: Sequence[float]
    values: Mapping[Copy, Array]


def compressed_steps(
    step: TrainGraph, initial: InitialValues, plan: Plan, batches: Sequence[Sequence[Array]]
) -> CompressedSteps:
    """Make the steps of a compressed strategy, all workers in this process."""
    compiled = compile_tasks(step, plan, range(topology_of(plan).n_tasks))
    steps = [each.step for each in compiled]
    compressed = {node.variable for node in plan.nodes if node.compressor is not None}
    crossings = [[each for each in crossings_of(s) if each.gradient[0] in compressed] for s in steps]
    passed, losses = [], []
    with InProcessCluster([each.program for each in compiled], initial) as cluster:
        values = cluster.read()
        owed = [_owed(values)]
        for batch in batches:

            def one(session: WorkerSession, batch: Sequence[Array] = batch) -> tuple[list[Array], float]:
                task = session.program.task
                return passed_on(session, steps[task], batch, [each.boundary for each in crossings[task]])

            by_task = cluster.each(one)
            passed.append(_gathered(crossings, [values for values, _ in by_task]))
            losses.append(sum(loss for _, loss in by_task))
            values = cluster.read()
            owed.append(_owed(values))
    return CompressedSteps(passed=passed, owed=owed, losses=losses, values=values)


def _owed(values: Mapping[Copy, Array]) -> dict[Copy, Array]:
    return {copy: value for copy, value in values.items() if copy[0].endswith(f"/{RESIDUAL}")}


def _gathered(
    crossings: Sequence[Sequence[GradientCrossing]], values: Sequence[Sequence[Array]]
) -> dict[Gradient, Pieces]:
    """What boundaries pass on, of the first copy of each gradient, whose parts may be with several tasks."""
    pieces: dict[tuple[Gradient, int | None], dict[int, tuple[Part | None, Array]]] = {}
    for of_task, own in zip(crossings, values, strict=True):
        for each, value in zip(of_task, own, strict=True):
            of_copy = pieces.setdefault((each.gradient, each.copy), {})
            of_copy.setdefault(each.part.index if each.part else 0, (each.part, value))
    first: dict[Gradient, Pieces] = {}
    for (gradient, _), copies in pieces.items():
        first.setdefault(gradient, list(copies.values()))
    return first
