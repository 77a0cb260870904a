"""One repeat of one case: fresh processes, the transformed step, the check, the timed window."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.captures import Capture
from harness.equivalence import Array, Copy, Reference
from harness.measure.collector import Measurement, measure
from harness.measure.patience import patience_s
from harness.measure.windows import WarmUp
from harness.provision.base import Cluster, ProcessSet
from harness.provision.serving import serving_processes
from harness.records import Equivalence
from harness.worker.jobs import Opened
from strategies.plan import Plan

JOBS = "harness.worker.jobs"
STUDY = "harness.worker.study"
CHECK_STEPS = 4
SETUP_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRun:
    """What running a case once has shown.

    Attributes:
        opened: what each worker's program cost.
    """

    measurement: Measurement
    opened: tuple[Opened, ...]
    equivalence: Equivalence | None


def run_case(
    cluster: Cluster,
    capture: Capture,
    plan: Plan,
    batches: Path,
    logs: Sequence[Path],
    *,
    n_steps: int,
    warmup: WarmUp,
    reference: Reference | None,
    repeat: int,
) -> CaseRun:
    """Run a plan on the first workers of a cluster.

    Args:
        batches: folder of global batches; used in turn.
        logs: one for each worker.
        reference: what to check the real workers' state against first; None checks nothing.
        repeat: number to note with the check.
    Raises:
        CaseError: it failed; nothing of it runs on.
    """
    n_devices = [count if plan.device == "cpu" else 1 for count in plan.replicas_per_task]
    with serving_processes(cluster, logs, n_devices=n_devices) as processes:
        opened = _open(processes, capture, plan, batches)
        equivalence = None
        if reference is not None:
            equivalence = _check(processes, reference, repeat)
            _each(processes, f"{JOBS}:load", [()] * len(opened), stage="load")
        measurement = measure(processes, n_steps=n_steps, warmup=warmup, batch_size=plan.batch_size)
    return CaseRun(measurement=measurement, opened=opened, equivalence=equivalence)


def _open(processes: ProcessSet, capture: Capture, plan: Plan, batches: Path) -> tuple[Opened, ...]:
    document = plan.model_dump_json()
    tasks = range(len(plan.replicas_per_task))
    answers = _each(
        processes,
        f"{JOBS}:open_program",
        [(str(capture.folder), document, t) for t in tasks],
        stage="transform",
    )
    opened = tuple(answer for answer in answers if isinstance(answer, Opened))
    for job in ("load", "setup"):
        _each(processes, f"{JOBS}:{job}", [()] * len(opened), stage="load")
    shares: list[tuple[object, ...]] = [(str(batches), o.start, o.stop) for o in opened]
    _each(processes, f"{STUDY}:stage_batches", shares, stage="load")
    return opened


def _check(processes: ProcessSet, reference: Reference, repeat: int) -> Equivalence:
    """Make the reference's steps and compare all copies of all variables."""
    yardstick = reference.yardstick
    n_workers = len(processes.pids)
    known_s: list[float] = []
    for first in range(yardstick.n_steps):
        started_s = time.monotonic()
        timeout_s = patience_s(1, known_s)
        _each(processes, f"{JOBS}:run_steps", [(1, first)] * n_workers, stage="check", timeout_s=timeout_s)
        known_s.append(time.monotonic() - started_s)
    actual: dict[Copy, Array] = {}
    for values in _each(processes, f"{JOBS}:read_variables", [()] * n_workers, stage="check"):
        assert isinstance(values, Mapping)
        actual |= values
    verdict = yardstick.judge(actual)
    return Equivalence(
        checked=True,
        equivalent=verdict.equivalent,
        max_update_error=verdict.max_update_error,
        noise_floor=verdict.noise_floor,
        tolerance=verdict.tolerance,
        checked_in_repeat=repeat,
    )


def _each(
    processes: ProcessSet,
    function: str,
    args: Sequence[tuple[object, ...]],
    *,
    stage: str,
    timeout_s: float = SETUP_S,
) -> list[object]:
    return processes.call(function, args, timeout_s=timeout_s, stage=stage)
