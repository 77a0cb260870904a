"""Checks a plan against the reference, all workers in one process."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.equivalence.step_results import compared
from harness.equivalence.verification import Verification, comparable
from harness.worker.jobs.arithmetic import compute_exactly
from harness.worker.jobs.batches import Batch, read_batches
from harness.worker.jobs.check import captured_step
from harness.worker.jobs.refusals import dtype_error, refusals_as, strategy_error
from harness.worker.process.job import JobState

if TYPE_CHECKING:
    from harness.equivalence.reference_outcome import Reference
    from strategies.plan.schema import Plan


def verify(
    state: JobState,
    capture_folder: str,
    batch_folder: str,
    plan: "Plan",
    n_steps: int,
    float64: bool,
    shrink: bool,
    last_batch: int | None,
) -> Verification:
    """Check a plan against the reference, all workers in this process.

    Args:
        shrink: also find the first pass and variable that diverge, if any do.
        last_batch: examples in the last step's batch, None for all.
    Raises:
        UsageError: as `check.separability`, or for a step that the strategy, or float64, is not for.
        CaseError: the reference itself has a loss that is not finite.
    """
    from harness.worker.jobs.step_failures import naming_users_line
    from harness.worker.session.capture_store import InitialValues, load_step
    from harness.worker.verify.bisect import first_divergence
    from harness.worker.verify.check import check, check_bounds, make_reference
    from harness.worker.verify.whole_batch import separability_of
    from strategies.planner import topology_of

    compute_exactly(plan.device)
    with refusals_as(dtype_error):
        step, initial, batches = captured_step(capture_folder, batch_folder, n_steps, float64=float64)
    batches = [*batches[:-1], [part[:last_batch] for part in batches[-1]]]

    def read() -> list[Batch]:
        *others, last = read_batches(Path(batch_folder), n=n_steps)
        return [*others, [part[:last_batch] for part in last]]

    def refer() -> "Reference":
        folder = Path(capture_folder)
        captured, wide = load_step(folder), InitialValues(folder, float64=True)
        with refusals_as(dtype_error):
            separability = separability_of(captured, wide, topology_of(plan), batches[0])
        reference = make_reference(step, initial, topology_of(plan), batches)
        return replace(reference, separability=separability)

    with refusals_as(strategy_error), naming_users_line(capture_folder, topology_of(plan), read):
        checkup = check(step, initial, plan, batches, refer)
        bound = check_bounds(step, initial, plan, batches) if plan.strategy_class == "bounded" else None
    expected = comparable(checkup.reference)
    verification = Verification(
        strategy_class=plan.strategy_class,
        verdict=checkup.verdict,
        losses=checkup.losses,
        reference_losses=expected.yardstick.losses,
        separability=expected.separability,
        results=compared(checkup.results, expected.results),
        bound=bound,
        warnings=plan.warnings,
        notes=(*plan.notes, *checkup.notes),
    )
    if not shrink or verification.equivalent is not False:
        return verification
    return replace(
        verification, divergence=first_divergence(step, initial, plan, batches[0], checkup.verdict)
    )
