"""Where a strategy leaves the reference: the first pass after which it does, and the first such variable.

Looked at is what crosses the boundaries in the first step. Before synchronisation, what all replicas bring,
weighted and added up, must be what the reference combines; after it, every boundary must pass that on. Where
replicas share statistics, these come first, and what each would bring by itself says nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

import numpy as np

from harness.equivalence import Array, Verdict
from harness.worker.artefact import InitialValues
from harness.worker.in_process import InProcessCluster
from harness.worker.reference import first_crossing, first_statistics
from harness.worker.session_runner import WorkerSession
from strategies.ir.train_graph import Boundary, Contribution, TrainGraph
from strategies.passes.of_plan import passes_of
from strategies.passes.pipeline import run_passes
from strategies.passes.replicate import replica_prefix
from strategies.passes.rewire import captured_name
from strategies.passes.sync_statistics import SyncStatistics
from strategies.plan import Plan
from strategies.planning import topology_of
from strategies.tf_bridge.program import build_program
from strategies.topology import Topology

T = TypeVar("T")
Crossing: TypeAlias = Mapping[str, Array]
CAPTURE = "capture"


def first_divergence(
    step: TrainGraph, initial: InitialValues, plan: Plan, batch: Sequence[Array], verdict: Verdict
) -> dict[str, str]:
    """The first pass and variable that diverge, for a plan that is not equivalent.

    Args:
        batch: the first global batch.
        verdict: of the whole strategy; its tolerance is what a difference is compared with.
    Returns:
        `{"pass", "variable"}`; the pass is the last one if gradients are right and the update is not. A wrong
        statistic goes by its layer's name.
    """
    topology = topology_of(plan)
    passes = [passes_of(plan, task) for task in range(topology.n_tasks)]
    made = [run_passes(own, step, topology).step for own in passes]
    layer = _first_wrong_layer(step, made, initial, topology, batch, verdict.tolerance)
    if layer is not None:
        return {"pass": SyncStatistics.name, "variable": layer}
    combined = first_crossing(step, initial, topology, batch)
    shapes = {b.values: b for b in step.boundaries}
    expected = {name: _dense(shapes[name], *value) for name, value in combined.items()}
    synchronised_by: dict[str, str] = {}
    last = passes[0][-1].name if passes[0] else CAPTURE
    for n, each in enumerate(passes[0], start=1):
        steps = [run_passes(own[:n], step, topology).step for own in passes]
        totals = {
            captured_name(b) for s in steps for b in s.boundaries if any(c.total for c in b.contributions)
        }
        for name in totals - set(synchronised_by):
            synchronised_by[name] = each.name
        brought = {captured_name(b) for s in steps for b in s.boundaries if b.contributions}
        if not totals and brought == set(expected) and not topology.global_statistics:
            wrong = _first_wrong(
                step, expected, [_brought(steps, initial, topology, batch)], verdict.tolerance
            )
            if wrong is not None:
                return {"pass": each.name, "variable": shapes[wrong].variable}
    wrong = _first_wrong(step, expected, _passed_on(made, initial, topology, batch), verdict.tolerance)
    if wrong is not None:
        return {"pass": synchronised_by.get(wrong, last), "variable": shapes[wrong].variable}
    worst = next(v.name for v in verdict.variables if not v.update_error <= verdict.tolerance)
    return {"pass": last, "variable": worst}


def _first_wrong_layer(
    step: TrainGraph,
    made: Sequence[TrainGraph],
    initial: InitialValues,
    topology: Topology,
    batch: Sequence[Array],
    tolerance: float,
) -> str | None:
    """The first layer for which a replica has other statistics than all shards have together."""
    if not topology.global_statistics or not step.statistics:
        return None
    expected = first_statistics(step, initial, topology, batch)
    in_order = sorted(step.statistics, key=lambda s: s.level)

    def wrong(session: WorkerSession) -> list[int]:
        task = session.program.task
        prefixes = [replica_prefix(replica.rank) for replica in topology.local_replicas(task)]
        refs = [prefix + s.node for s in in_order for prefix in prefixes]
        values = session.run(refs, _feed(session, batch), made[task].targets())
        wanted = [expected[s.node] for s in in_order for _ in prefixes]
        return [
            k // len(prefixes)
            for k, (got, want) in enumerate(zip(values, wanted, strict=True))
            if _differs(got, want, tolerance)
        ]

    places = [place for found in _together(made, initial, topology, wrong) for place in found]
    return in_order[min(places)].layer if places else None


def _differs(got: Array, want: Array, tolerance: float) -> bool:
    scale = float(np.max(np.abs(want), initial=0.0)) or 1.0
    return not np.max(np.abs(got - want), initial=0.0) <= tolerance * scale


def _first_wrong(
    step: TrainGraph, expected: Crossing, seen: Sequence[Crossing], tolerance: float
) -> str | None:
    for b in step.boundaries:
        for crossing in seen:
            got = crossing.get(b.values)
            if got is not None and _differs(got, expected[b.values], tolerance):
                return b.values
    return None


def _brought(
    steps: Sequence[TrainGraph], initial: InitialValues, topology: Topology, batch: Sequence[Array]
) -> Crossing:
    """What the replicas of all tasks contribute, added up: each task runs by itself, on one device."""
    total: dict[str, Array] = {}
    for task, step in enumerate(steps):
        graph = step.graph.with_nodes(replace(node, device="") for node in step.graph.nodes)
        crossing = replace(step, graph=graph, regions=(), shared_update=(), state_targets=(), effects=())
        program = build_program(crossing, topology, task, nodes_before=0, alone=True)
        session = WorkerSession(program, "", initial, stepping=False)
        session.load()
        session.setup()
        fetches = [(b, c) for b in step.boundaries for c in b.contributions]
        for (b, contribution), value in zip(fetches, _fetch(session, fetches, batch), strict=True):
            name = captured_name(b)
            total[name] = total.get(name, 0.0) + contribution.weight * _dense(b, *value)
        session.close()
    return total


def _passed_on(
    steps: Sequence[TrainGraph], initial: InitialValues, topology: Topology, batch: Sequence[Array]
) -> list[Crossing]:
    """What every copy of every boundary passes on, one mapping for each copy, all tasks stepping together."""

    def one(session: WorkerSession) -> list[Crossing]:
        step = steps[session.program.task]
        fetches = [(b, _own(b)) for b in step.boundaries]
        values = _fetch(session, fetches, batch, step.targets())
        return [{captured_name(b): _dense(b, *v)} for (b, _), v in zip(fetches, values, strict=True)]

    return [crossing for made in _together(steps, initial, topology, one) for crossing in made]


def _together(
    steps: Sequence[TrainGraph], initial: InitialValues, topology: Topology, job: Callable[[WorkerSession], T]
) -> list[T]:
    """What a job gives on all workers at a time, by task."""
    programs = [build_program(s, topology, task, nodes_before=0) for task, s in enumerate(steps)]
    with InProcessCluster(programs, initial) as cluster:
        return cluster.each(job)


def _own(b: Boundary) -> Contribution:
    return Contribution(rank=b.rank or 0, values=b.values, indices=b.indices, weight=1.0)


def _fetch(
    session: WorkerSession,
    fetches: Sequence[tuple[Boundary, Contribution]],
    batch: Sequence[Array],
    targets: Sequence[str] = (),
) -> list[tuple[Array, Array | None]]:
    refs = [r for _, c in fetches for r in (c.values, c.indices) if r is not None]
    values = iter(session.run(refs, _feed(session, batch), targets))
    return [(next(values), None if c.indices is None else next(values)) for _, c in fetches]


def _feed(session: WorkerSession, batch: Sequence[Array]) -> dict[str, Array]:
    program = session.program
    return {b.node: part[program.start : program.stop] for b, part in zip(program.batch, batch, strict=True)}


def _dense(b: Boundary, values: Array, indices: Array | None) -> Array:
    if indices is None:
        return values.astype(np.float64)
    dense = np.zeros(b.shape.dims or (), np.float64)
    np.add.at(dense, indices, values.astype(np.float64))
    return dense
