"""Divergence from the reference: the first pass after which it is visible, and the first such variable.

Values that cross the boundaries in the first step are compared. Before synchronisation, all contributions,
weighted and added up, must equal the reference's combined value; after it, boundaries must pass it on. If
replicas share statistics, these are compared first, because single contributions then prove nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

import numpy as np

from harness.verification.differences import GROUP_SHARE, widened
from harness.verification.verdict import Verdict
from harness.verification.verification import Divergence
from harness.verification.worker.boundary_values import dense_rows, fed, fetched, passed_on
from harness.verification.worker.in_process import InProcessCluster
from harness.verification.worker.rounding import PLAIN
from harness.verification.worker.shard_steps import ShardSteps
from harness.worker.session.capture_store import InitialValues
from harness.worker.session.session import WorkerSession
from harness.worker.session.tensorflow_settings import Use
from harness.worker.variable_parts import Array
from strategies.ir.train_graph import Statistic, TrainGraph
from strategies.passes.collectives.batch_norm import SyncStatistics
from strategies.passes.pass_order import passes_of
from strategies.passes.replicate.rewire import captured_name
from strategies.passes.replicate.step_copies import replica_prefix
from strategies.passes.run import run_passes
from strategies.plan.schema import Plan
from strategies.planner import topology_of
from strategies.tf_bridge.program import build_program
from strategies.topology import Topology

T = TypeVar("T")
Crossing: TypeAlias = Mapping[str, Array]
CAPTURE = "capture"
LOSS = "the loss"


def first_divergence(
    step: TrainGraph, initial: InitialValues, plan: Plan, batch: Sequence[Array], verdict: Verdict
) -> Divergence:
    """First pass and variable that diverge, for a plan that is not equivalent.

    Args:
        batch: first global batch.
        verdict: verdict on the whole strategy, with the tolerances of differences.
    Returns:
        Pass and variable; the last pass if gradients are right, but the update is not. A wrong statistic has
        its layer's name.
    """
    topology = topology_of(plan)
    passes = [passes_of(plan, task) for task in range(topology.n_tasks)]
    rewritten = [run_passes(own, step, topology).step for own in passes]
    last = passes[0][-1].name if passes[0] else CAPTURE
    at_the_end = Divergence(pass_name=last, variable=next(iter(verdict.wrong), LOSS))
    if any(program.steps_per_run is not None for program in rewritten):
        # Values within a loop on the device cannot be read.
        return at_the_end
    joint = sorted(step.joint_statistics(every_layer=topology.global_statistics), key=lambda s: s.level)
    layer = _first_wrong_layer(step, joint, rewritten, initial, topology, batch, verdict.tolerance)
    if layer is not None:
        return Divergence(pass_name=SyncStatistics.name, variable=layer)
    with ShardSteps(step, initial, topology) as reference:
        reference.begin(PLAIN)
        _, combined = reference.crossing(batch)
    shapes = {b.values: b for b in step.boundaries}
    expected = {
        name: widened(rows) if ids is None else dense_rows(rows, ids, shapes[name].shape.dims or ())
        for name, (rows, ids) in combined.items()
    }
    first = {b.values for b in step.boundaries if b.level == 1}
    synchronised_by: dict[str, str] = {}
    for n, rewrite in enumerate(passes[0], start=1):
        steps = [run_passes(own[:n], step, topology).step for own in passes]
        totals = {
            captured_name(b) for s in steps for b in s.boundaries if any(c.total for c in b.contributions)
        }
        for name in totals - set(synchronised_by):
            synchronised_by[name] = rewrite.name
        with_contributions = {captured_name(b) for s in steps for b in s.boundaries if b.contributions}
        if not totals and with_contributions == set(expected) and not joint:
            # Beyond the first level, a single replica would continue from an update of its own.
            outcome = {
                name: v for name, v in _contributed(steps, initial, topology, batch).items() if name in first
            }
            wrong = _first_wrong(step, expected, [outcome], verdict)
            if wrong is not None:
                return Divergence(pass_name=rewrite.name, variable=shapes[wrong].variable)
    wrong = _first_wrong(step, expected, _passed_on(rewritten, initial, topology, batch), verdict)
    if wrong is not None:
        return Divergence(pass_name=synchronised_by.get(wrong, last), variable=shapes[wrong].variable)
    return at_the_end


def _first_wrong_layer(
    step: TrainGraph,
    joint: Sequence[Statistic],
    rewritten: Sequence[TrainGraph],
    initial: InitialValues,
    topology: Topology,
    batch: Sequence[Array],
    tolerance: float,
) -> str | None:
    if not joint:
        return None
    with ShardSteps(step, initial, topology) as reference:
        reference.begin(PLAIN)
        expected = reference.joint_statistics(batch)

    def wrong(session: WorkerSession) -> list[int]:
        task = session.program.task
        prefixes = [replica_prefix(replica.rank) for replica in topology.local_replicas(task)]
        refs = [prefix + s.node for s in joint for prefix in prefixes]
        values = session.run(refs, fed(session, batch), rewritten[task].targets())
        wanted = [expected[s.node] for s in joint for _ in prefixes]
        return [
            k // len(prefixes)
            for k, (got, want) in enumerate(zip(values, wanted, strict=True))
            if _differs(got, want, tolerance)
        ]

    places = [place for per_task in _together(rewritten, initial, topology, wrong) for place in per_task]
    return joint[min(places)].layer if places else None


def _differs(got: Array, want: Array, tolerance: float, scale: float = 0.0) -> bool:
    """True for a difference beyond the tolerance, relative to the largest value or to `scale`."""
    scale = max(_largest(want), scale) or 1.0
    return not np.max(np.abs(got - want), initial=0.0) <= tolerance * scale


def _largest(value: Array) -> float:
    return float(np.max(np.abs(value), initial=0.0))


def _first_wrong(
    step: TrainGraph, expected: Crossing, seen: Sequence[Crossing], verdict: Verdict
) -> str | None:
    tolerances = {v.name: v.limits.tolerance for v in verdict.variables if v.decidable}
    # As for updates: a value much smaller than others of its kind may consist of rounding alone.
    scales: dict[str, float] = {}
    for b in step.boundaries:
        scales[b.role] = max(scales.get(b.role, 0.0), GROUP_SHARE * _largest(expected[b.values]))
    for b in step.boundaries:
        for crossing in seen:
            got = crossing.get(b.values)
            if got is None or b.variable not in tolerances:
                continue
            if _differs(got, expected[b.values], tolerances[b.variable], scales[b.role]):
                return b.values
    return None


def _contributed(
    steps: Sequence[TrainGraph], initial: InitialValues, topology: Topology, batch: Sequence[Array]
) -> Crossing:
    """Sum of all replicas' contributions; each task runs by itself, on one device."""
    total: dict[str, Array] = {}
    for task, step in enumerate(steps):
        graph = step.graph.with_nodes(replace(node, device="") for node in step.graph.nodes)
        crossing = replace(step, graph=graph, regions=(), shared_update=(), state_targets=(), effects=())
        program = build_program(crossing, topology, task, nodes_before=0, alone=True)
        session = WorkerSession(program, "", initial, use=Use.PARTS_OF_STEPS)
        session.load()
        session.setup()
        fetches = [(b, c) for b in step.boundaries for c in b.contributions]
        for (b, contribution), value in zip(fetches, fetched(session, fetches, batch), strict=True):
            name = captured_name(b)
            total[name] = total.get(name, 0.0) + contribution.weight * value
        session.close()
    return total


def _passed_on(
    steps: Sequence[TrainGraph], initial: InitialValues, topology: Topology, batch: Sequence[Array]
) -> list[Crossing]:
    def one(session: WorkerSession) -> list[Crossing]:
        step = steps[session.program.task]
        values, _ = passed_on(session, step, batch, step.boundaries)
        return [{captured_name(b): v} for b, v in zip(step.boundaries, values, strict=True)]

    return [crossing for per_task in _together(steps, initial, topology, one) for crossing in per_task]


def _together(
    steps: Sequence[TrainGraph], initial: InitialValues, topology: Topology, job: Callable[[WorkerSession], T]
) -> list[T]:
    programs = [build_program(s, topology, task, nodes_before=0) for task, s in enumerate(steps)]
    with InProcessCluster(programs, initial) as cluster:
        return cluster.each(job)
