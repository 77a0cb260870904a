"""Jobs of a worker process that check a captured step: references, separability, bounds and verdicts."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.verification.reference import Reference, Tolerances, compared
from harness.verification.separability import Separability
from harness.verification.verdict import BoundVerdict, Verdict
from harness.verification.verification import Verification
from harness.worker.jobs.arithmetic import compute_exactly
from harness.worker.jobs.batches import Batch, read_batches
from harness.worker.jobs.refusals import dtype_error, refusals_as, strategy_error
from harness.worker.process.job import JobState

if TYPE_CHECKING:
    from harness.worker.session.capture_store import InitialValues
    from strategies.ir.train_graph import TrainGraph
    from strategies.plan.schema import Plan
    from strategies.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSteps:
    """Steps of a stored capture on its first batches.

    Attributes:
        float64: True computes in float64 in place of the step's own types.
        last_batch: examples in the last step's batch; None for all.
    """

    capture: Path
    batches: Path
    n_steps: int
    float64: bool = False
    last_batch: int | None = None

    def read(self) -> list[Batch]:
        """Batches in the step's own types."""
        *others, last = read_batches(self.batches, n=self.n_steps)
        return [*others, [part[: self.last_batch] for part in last]]

    def load(self) -> tuple["TrainGraph", "InitialValues", list[Batch]]:
        """The step, its initial values and its batches."""
        from harness.worker.session.capture_store import InitialValues, in_float64, load_step
        from strategies.tf_bridge.float64 import step_in_float64

        step, initial = load_step(self.capture), InitialValues(self.capture, float64=self.float64)
        if not self.float64:
            return step, initial, self.read()
        batches = [[in_float64(part) for part in batch] for batch in self.read()]
        return step_in_float64(step), initial, batches

    def separability(self, topology: "Topology") -> Separability:
        """Compare the shards of the first batch with the whole batch, always in float64."""
        from harness.verification.worker.whole_batch import separability_of
        from harness.worker.session.capture_store import InitialValues, load_step

        captured, initial = load_step(self.capture), InitialValues(self.capture, float64=True)
        return separability_of(captured, initial, topology, self.read()[0])

    @contextmanager
    def naming_users_line(self, topology: "Topology") -> Iterator[None]:
        """Name the user's line in failures of the captured step itself."""
        from harness.verification.worker.step_failures import naming_users_line

        with naming_users_line(self.capture, topology, self.read):
            yield


def reference(state: JobState, steps: StoredSteps, topology: "Topology") -> Reference:
    """Reference of a captured step."""
    from harness.verification.worker.check import make_reference

    compute_exactly(topology.device)
    step, initial, batches = steps.load()
    with steps.naming_users_line(topology):
        return make_reference(step, initial, topology, batches)


def more_tolerances(state: JobState, steps: StoredSteps, topology: "Topology") -> Tolerances:
    """Tolerances of a captured step, from a thorough reference."""
    from harness.verification.worker.check import make_reference

    compute_exactly(topology.device)
    step, initial, batches = steps.load()
    return make_reference(step, initial, topology, batches, thorough=True).tolerances


def separability(state: JobState, steps: StoredSteps, topology: "Topology") -> Separability:
    """Compare the shards of the first batch with the step on the whole batch.

    Raises:
        UsageError: the loss is a sum over examples, but not declared as one, or the other way round.
    """
    compute_exactly(topology.device)
    with steps.naming_users_line(topology):
        return steps.separability(topology)


def verdict(state: JobState, steps: StoredSteps, plan: "Plan", *, reference: Reference) -> Verdict:
    """Verdict on a plan with all workers in this process, against the same topology and types."""
    from harness.verification.worker.check import check

    compute_exactly(plan.device)
    step, initial, batches = steps.load()
    return check(step, initial, plan, batches, lambda: reference).verdict


def bounds(state: JobState, steps: StoredSteps, plan: "Plan") -> BoundVerdict:
    """Compare a compressed strategy's losses with its bounds.

    Its workers share this process, so that the values at their boundaries can be read, unlike in timed steps.
    """
    from harness.verification.worker.check import check_bounds
    from strategies.planner import topology_of

    compute_exactly(plan.device)
    step, initial, batches = steps.load()
    with steps.naming_users_line(topology_of(plan)):
        return check_bounds(step, initial, plan, batches)


def verify(state: JobState, steps: StoredSteps, plan: "Plan", shrink: bool) -> Verification:
    """Check a plan against the reference, all workers in this process.

    Args:
        shrink: True also finds the first pass and variable that diverge.
    Raises:
        UsageError: see `separability`; or the strategy, or float64, cannot run the step.
        CaseError: the reference itself has a loss that is not finite.
    """
    from harness.verification.worker.check import check, check_bounds, make_reference
    from harness.verification.worker.divergence import first_divergence
    from strategies.planner import topology_of

    compute_exactly(plan.device)
    with refusals_as(dtype_error):
        step, initial, batches = steps.load()
    topology = topology_of(plan)

    def refer() -> Reference:
        with refusals_as(dtype_error):
            separability = steps.separability(topology)
        return replace(make_reference(step, initial, topology, batches), separability=separability)

    with refusals_as(strategy_error), steps.naming_users_line(topology):
        checkup = check(step, initial, plan, batches, refer)
        bound = check_bounds(step, initial, plan, batches) if plan.strategy_class == "bounded" else None
    reference = checkup.reference
    reference.require_finite(plan.workload)
    verification = Verification(
        strategy_class=plan.strategy_class,
        verdict=checkup.verdict,
        losses=tuple(checkup.outcome.losses or ()),
        reference_losses=tuple(reference.losses),
        separability=reference.separability,
        results=compared(checkup.outcome.results, reference.outcome.results),
        bound=bound,
        warnings=plan.warnings,
        notes=(*plan.notes, *checkup.notes),
    )
    if not shrink or verification.equivalent is not False:
        return verification
    divergence = first_divergence(step, initial, plan, batches[0], checkup.verdict)
    return replace(verification, divergence=divergence)
