"""One repeat of one case: fresh processes, the transformed step, the check, the timed window."""

import time
from dataclasses import dataclass
from pathlib import Path

from harness.equivalence.reference_outcome import Reference
from harness.equivalence.verdict import Verdict
from harness.experiment.cases import Case
from harness.measure.collector import Measurement, measure
from harness.measure.link import measured_links
from harness.measure.timeouts import USUAL, Timeouts
from harness.measure.traced_repeat import Traced, traced
from harness.measure.windows import WarmUp
from harness.provision.protocols import Cluster, ProcessSet
from harness.records.record import Equivalence, MeasuredLink
from harness.run import checkpoints
from harness.run.ready import PreparedCase, ready_processes
from harness.worker.jobs import training
from harness.worker.jobs.codec_time import codec_seconds
from harness.worker.jobs.training import Opened
from harness.worker.session.variable_parts import values_of
from strategies.plan.schema import Plan

CHECK_STEPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRun:
    """What running a case once has shown.

    Attributes:
        opened: what each worker's program cost.
        notes: what updates took and dropped, where not all wait for all; why the case was run again.
        variable_bytes: in each worker's memory, slots included, as the workers' own tables tell.
        codec_s: see `harness.worker.jobs.codec_time`, of the slowest worker; None without a compressor.
        saved_step: number of steps before the checkpoint that was written; None if none was.
        traced: a step after all of that; None where none was asked for.
        links: what the workers' links carried before all of it; None where none is limited.
    """

    measurement: Measurement
    opened: tuple[Opened, ...]
    equivalence: Equivalence | None
    variable_bytes: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()
    codec_s: float | None = None
    saved_step: int | None = None
    traced: Traced | None = None
    links: tuple[MeasuredLink, ...] | None = None


def run_case(
    cluster: Cluster,
    prepared: PreparedCase,
    *,
    n_steps: int,
    warmup: WarmUp,
    reference: Reference | None,
    repeat: int,
    checkpoint: Path | None = None,
    trace: bool = False,
    timeouts: Timeouts = USUAL,
) -> CaseRun:
    """Run a plan on the first workers of a cluster.

    It takes nine arguments, since what may differ between repeats of one prepared case is not part of it.

    Args:
        reference: what to check the real workers' state against first; None checks nothing.
        repeat: number to note with the check.
        checkpoint: folder for the state after the last step; None saves none.
        trace: make another step and trace it.
        timeouts: for a model of no size.
    Raises:
        CaseError: it failed; nothing of it runs on.
    """
    case, capture, plan = prepared.case, prepared.capture, prepared.plan
    limits = timeouts.for_model(capture.summary, max(plan.replicas_per_task))
    with ready_processes(cluster, prepared, limits) as (processes, opened):
        links = measured_links(processes, case.shape.links)
        equivalence = None if reference is None else _checked(processes, reference, repeat, limits)
        measurement = measure(
            processes,
            n_steps=n_steps,
            warmup=warmup,
            batch_size=plan.batch_size,
            period=plan.execution.period,
            isolated=cluster.isolated,
            timeouts=limits,
        )
        held = variable_bytes(processes, limits)
        notes = _update_notes(processes, plan, limits)
        saved_step = None
        if checkpoint is not None:
            before = 0 if capture.restored is None else capture.restored.step or 0
            saved_step = before + measurement.warmup_steps + n_steps
            checkpoints.save(processes, capture.summary, cluster.seen(checkpoint), saved_step, limits)
        codec_s = _codec_s(processes, plan, limits)
        last = _traced(processes, case, plan, measurement, limits) if trace else None
    if checkpoint is not None:
        checkpoints.require_saved(checkpoint)
    return CaseRun(
        measurement=measurement,
        opened=opened,
        equivalence=equivalence,
        variable_bytes=held,
        codec_s=codec_s,
        notes=notes,
        saved_step=saved_step,
        traced=last,
        links=links,
    )


def _checked(processes: ProcessSet, reference: Reference, repeat: int, timeouts: Timeouts) -> Equivalence:
    """Compare the real workers' state with the reference's, and have them begin again."""
    verdict = check(processes, reference, timeouts).verdict
    processes.call(training.load, [()] * len(processes.pids), timeout_s=timeouts.setup_s, stage="load")
    nearest = verdict.nearest
    return Equivalence(
        checked=True,
        equivalent=verdict.equivalent,
        reason=verdict.reason,
        max_update_error=None if nearest is None else nearest.update_error,
        noise_floor=None if nearest is None else nearest.limits.floor,
        tolerance=None if nearest is None else nearest.limits.tolerance,
        undecidable=verdict.undecidable,
        separable=None if reference.separability is None else reference.separability.separable,
        separability=None if reference.separability is None else reference.separability.explanation,
        checked_in_repeat=repeat,
    )


def _traced(
    processes: ProcessSet, case: Case, plan: Plan, measured: Measurement, timeouts: Timeouts
) -> Traced:
    if case.chosen.strategy.runner != "graph":
        return Traced(note="no traced step: TensorFlow runs this strategy in a way of its own")
    period = plan.execution.period
    title = f"{case.workload_name} {case.strategy}"
    return traced(processes, measured, title=title, period=period, timeouts=timeouts)


def variable_bytes(processes: ProcessSet, timeouts: Timeouts = USUAL) -> tuple[int, ...]:
    """Bytes of variables and slots in the memory of each worker of a session that has been loaded."""
    n_workers = len(processes.pids)
    held: dict[tuple[int, str], int] = {}
    for known in processes.call(
        training.held_bytes, [()] * n_workers, timeout_s=timeouts.setup_s, stage="collect"
    ):
        held |= known  # several workers know of what one serves
    return tuple(sum(n for (task, _), n in held.items() if task == worker) for worker in range(n_workers))


def _codec_s(processes: ProcessSet, plan: Plan, timeouts: Timeouts) -> float | None:
    if not any(node.compressor for node in plan.nodes):
        return None
    args = [(plan.model_dump_json(),)] * len(processes.pids)
    return max(processes.call(codec_seconds, args, timeout_s=timeouts.setup_s, stage="run"))


def _update_notes(processes: ProcessSet, plan: Plan, timeouts: Timeouts) -> tuple[str, ...]:
    if plan.strategy_class != "statistical":
        return ()
    notes = processes.call(
        training.update_notes, [()] * len(processes.pids), timeout_s=timeouts.setup_s, stage="collect"
    )
    return tuple(note for of_worker in notes for note in of_worker)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSteps:
    """What workers' own first steps came to: the verdict, and the global mean loss of each."""

    verdict: Verdict
    losses: tuple[float, ...]


def check(processes: ProcessSet, reference: Reference, timeouts: Timeouts = USUAL) -> CheckedSteps:
    """Make the reference's steps on ready processes and compare all copies of all variables."""
    yardstick = reference.yardstick
    n_workers = len(processes.pids)
    known_s: list[float] = []
    losses: list[float] = []
    for first in range(yardstick.n_steps):
        started_s = time.monotonic()
        ran = processes.call(
            training.run_steps,
            [(1, first)] * n_workers,
            timeout_s=timeouts.steps_s(1, known_s),
            stage="check",
        )
        known_s.append(time.monotonic() - started_s)
        losses.append(sum(float(steps.times.losses[0] @ steps.weights) for steps in ran))
    held = processes.call(
        training.read_variables, [()] * n_workers, timeout_s=timeouts.setup_s, stage="check"
    )
    return CheckedSteps(verdict=yardstick.judge(values_of(held), losses), losses=tuple(losses))
