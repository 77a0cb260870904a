"""Check of a case's real workers against the single-device reference, before they are timed."""

import time
from dataclasses import dataclass, replace

from harness.equivalence.capture_verdict import CaptureVerdict
from harness.equivalence.reference_outcome import Reference
from harness.equivalence.verdict import Verdict
from harness.experiment.model import Measure
from harness.measure.timeouts import USUAL, Timeouts
from harness.measure.windows import MAX_WARMUP_STEPS
from harness.provision.protocols import ProcessSet
from harness.records.facts.outcome import CheckedType, Equivalence
from harness.worker.jobs import training
from harness.worker.session.variable_parts import values_of

CHECK_STEPS = 4
MORE_CHECK_STEPS = 32
"""Steps for a trainable that has a gradient and did not move: gradients may be accumulated for so long."""


def n_staged(measure: Measure) -> int:
    """Global batches that a case can use: of a pipeline's case only its check and its traced step do."""
    return CHECK_STEPS if measure.input == "pipeline" else MAX_WARMUP_STEPS + measure.steps


def checked(
    processes: ProcessSet,
    reference: Reference,
    repeat: int,
    timeouts: Timeouts,
    *,
    steps_per_loop: int = 1,
) -> Equivalence:
    """Compare the real workers' state with the reference's, and have them begin again."""
    verdict = check(processes, reference, timeouts, steps_per_loop=steps_per_loop).verdict
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


def with_capture(found: Equivalence, capture: CaptureVerdict | None, *, is_control: bool) -> Equivalence:
    """Add the verdict on the capture to a check's outcome; a wrong capture makes the case not equivalent.

    Args:
        capture: None where the capture was not checked.
        is_control: the strategy is wrong on purpose, and its outcome stays.
    """
    if capture is None:
        return found
    beside = replace(found, captured=capture.equal, capture=capture.explanation)
    if capture.equal is not False or is_control:
        return beside
    return replace(beside, checked=True, equivalent=False, reason=capture.explanation)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSteps:
    """Result of the workers' first steps: the verdict, and the global mean loss of each step."""

    verdict: Verdict
    losses: tuple[float, ...]


def check(
    processes: ProcessSet, reference: Reference, timeouts: Timeouts = USUAL, *, steps_per_loop: int = 1
) -> CheckedSteps:
    """Make the reference's steps on ready processes and compare all copies of all variables.

    Args:
        steps_per_loop: most steps of a run; there are two runs at least.
    """
    yardstick = reference.yardstick
    n_workers = len(processes.pids)
    known_s: list[float] = []
    losses: list[float] = []
    most = min(steps_per_loop, -(-yardstick.n_steps // 2))
    for first in range(0, yardstick.n_steps, most):
        n_steps = min(most, yardstick.n_steps - first)
        started_s = time.monotonic()
        ran = processes.call(
            training.run_steps,
            [(n_steps, first)] * n_workers,
            timeout_s=timeouts.steps_s(n_steps, known_s),
            stage="check",
        )
        known_s.append((time.monotonic() - started_s) / n_steps)
        losses += (sum(float(steps.times.losses[k] @ steps.weights) for steps in ran) for k in range(n_steps))
    held = processes.call(
        training.read_variables, [()] * n_workers, timeout_s=timeouts.setup_s, stage="check"
    )
    return CheckedSteps(verdict=yardstick.judge(values_of(held), losses), losses=tuple(losses))
