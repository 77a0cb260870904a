"""Reference of a captured step, whether its shards mean what it means, and verdicts beside real workers."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.verification.separability import Separability
from harness.verification.step_results import compared
from harness.verification.verification import Verification, comparable
from harness.worker.jobs.arithmetic import compute_exactly
from harness.worker.jobs.batches import Batch, read_batches
from harness.worker.jobs.refusals import dtype_error, refusals_as, strategy_error
from harness.worker.process.job import JobState

if TYPE_CHECKING:
    from harness.verification.verdict import BoundVerdict, Verdict
    from harness.verification.verification import Reference
    from harness.worker.session.capture_store import InitialValues
    from strategies.ir.train_graph import TrainGraph
    from strategies.plan.schema import Plan
    from strategies.topology import Topology


def reference(
    state: JobState,
    capture_folder: str,
    batch_folder: str,
    topology: "Topology",
    n_steps: int,
    float64: bool,
) -> "Reference":
    """The reference of a captured step, in float64 or its own types, after so many steps."""
    from harness.verification.worker.check import make_reference
    from harness.verification.worker.step_failures import naming_users_line

    compute_exactly(topology.device)
    step, initial, batches = captured_step(capture_folder, batch_folder, n_steps, float64=float64)
    with naming_users_line(capture_folder, topology, partial(read_batches, Path(batch_folder), n=n_steps)):
        return make_reference(step, initial, topology, batches)


def verdict_in_float64(
    state: JobState, capture_folder: str, batch_folder: str, plan: "Plan", reference: "Reference"
) -> "Verdict":
    """The verdict on a plan whose workers share this process, in float64, after the reference's steps.

    Args:
        reference: of the same topology, in float64.
    """
    from harness.verification.worker.check import check

    compute_exactly(plan.device)
    n_steps = reference.yardstick.n_steps
    step, initial, batches = captured_step(capture_folder, batch_folder, n_steps, float64=True)
    return check(step, initial, plan, batches, lambda: reference).verdict


def separability(
    state: JobState, capture_folder: str, batch_folder: str, topology: "Topology"
) -> "Separability":
    """Whether the shards of the first batch mean what a captured step means on the whole of it.

    Raises:
        UsageError: the loss is a sum over examples and is not said to be one, or the other way round.
    """
    from harness.verification.worker.step_failures import naming_users_line
    from harness.verification.worker.whole_batch import separability_of
    from harness.worker.session.capture_store import InitialValues, load_step

    compute_exactly(topology.device)
    folder = Path(capture_folder)
    (batch,) = read_batches(Path(batch_folder), n=1)
    with naming_users_line(capture_folder, topology, partial(read_batches, Path(batch_folder), n=1)):
        return separability_of(load_step(folder), InitialValues(folder, float64=True), topology, batch)


def bounds(
    state: JobState, capture_folder: str, batch_folder: str, plan: "Plan", n_steps: int, float64: bool
) -> "BoundVerdict":
    """Whether a compressed strategy stays within its bounds in as many steps, in float64 or its own types.

    Its workers share this process: what crosses their boundaries is looked at, which timed steps do not show.
    """
    from harness.verification.worker.check import check_bounds
    from harness.verification.worker.step_failures import naming_users_line
    from strategies.planner import topology_of

    compute_exactly(plan.device)
    step, initial, batches = captured_step(capture_folder, batch_folder, n_steps, float64=float64)
    with naming_users_line(
        capture_folder, topology_of(plan), partial(read_batches, Path(batch_folder), n=n_steps)
    ):
        return check_bounds(step, initial, plan, batches)


def captured_step(
    capture_folder: str, batch_folder: str, n_steps: int, *, float64: bool
) -> tuple["TrainGraph", "InitialValues", list[Batch]]:
    """A captured step, its initial values and its first batches, all in float64 or in their own types."""
    from harness.worker.session.capture_store import InitialValues, in_float64, load_step
    from strategies.tf_bridge.float64 import step_in_float64

    folder = Path(capture_folder)
    step, initial = load_step(folder), InitialValues(folder, float64=float64)
    batches: Sequence[Batch] = read_batches(Path(batch_folder), n=n_steps)
    if not float64:
        return step, initial, list(batches)
    return step_in_float64(step), initial, [[in_float64(part) for part in batch] for batch in batches]


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
    from harness.verification.worker.check import check, check_bounds, make_reference
    from harness.verification.worker.divergence import first_divergence
    from harness.verification.worker.step_failures import naming_users_line
    from harness.verification.worker.whole_batch import separability_of
    from harness.worker.session.capture_store import InitialValues, load_step
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
