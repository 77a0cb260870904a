"""Check of a case's real workers against the single-device reference, before they are timed."""

import time
from dataclasses import dataclass, replace

from harness.equivalence.reference_outcome import Reference
from harness.equivalence.verdict import Verdict
from harness.experiment.spec import Measure
from harness.measure.timeouts import USUAL, Timeouts
from harness.measure.windows import MAX_WARMUP_STEPS
from harness.provision.protocols import ProcessSet
from harness.records.facts.outcome import CheckedType, Equivalence
from harness.worker.jobs import training
from harness.worker.session.variable_parts import values_of

CHECK_STEPS = 4


def n_staged(measure: Measure) -> int:
    """Global batches that a case can use: of a pipeline's case only its check and its traced step do."""
    return CHECK_STEPS if measure.input == "pipeline" else MAX_WARMUP_STEPS + measure.steps


def checked(processes: ProcessSet, reference: Reference, repeat: int, timeouts: Timeouts) -> Equivalence:
    """Compare the real workers' state with the reference's, and have them begin again."""
    verdict = check(processes, reference, timeouts).verdict
    processes.call(training.load, [()] * len(processes.pids), timeout_s=timeouts.setup_s, stage="load")
    return replace(
        equivalence_of(verdict),
        separable=None if reference.separability is None else reference.separability.separable,
        separability=None if reference.separability is None else reference.separability.explanation,
        checked_in_repeat=repeat,
    )


def equivalence_of(verdict: Verdict, dtype: CheckedType = "model") -> Equivalence:
    """A verdict as records keep it, without what belongs to the reference and the repeat."""
    nearest = verdict.nearest
    return Equivalence(
        checked=True,
        equivalent=verdict.equivalent,
        reason=verdict.reason,
        dtype=dtype,
        max_update_error=None if nearest is None else nearest.update_error,
        noise_floor=None if nearest is None else nearest.limits.floor,
        tolerance=None if nearest is None else nearest.limits.tolerance,
        undecidable=verdict.undecidable,
    )


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
