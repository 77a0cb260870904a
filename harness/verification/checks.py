"""Checks of a run's cases: on their workers before timing, and in a separate process."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import isfinite

from harness.errors import CaseError, first_line, own_errors
from harness.experiment.cases import Case
from harness.experiment.model import Measure
from harness.measure.timeouts import USUAL, Timeouts
from harness.measure.windows import MAX_WARMUP_STEPS
from harness.provision.failures import WorkerFailure
from harness.provision.protocols import ProcessSet
from harness.records.outcome import CheckedType, Equivalence
from harness.verification.captures import Capture, Captures, topology_of_case
from harness.verification.reference import Outcome, Reference
from harness.verification.verdict import Verdict
from harness.verification.verification import CaptureVerdict, without_more_references
from harness.worker.jobs import training
from harness.worker.process.messages import CutOff
from harness.worker.variable_parts import values_of
from strategies.plan.schema import COMPARED_WITH_REFERENCE, Plan, StrategyClass

CHECK_STEPS = 4
MORE_CHECK_STEPS = 32
"""Steps of the check if a trainable with a gradient did not move, because gradients may be accumulated."""


def n_staged(measure: Measure) -> int:
    """Number of global batches of a case; with a pipeline, only its check and traced step use them."""
    return CHECK_STEPS if measure.input == "pipeline" else MAX_WARMUP_STEPS + measure.steps


def checked(
    processes: ProcessSet,
    reference: Reference,
    repeat: int,
    timeouts: Timeouts,
    *,
    strategy_class: StrategyClass,
    steps_per_loop: int = 1,
) -> tuple[Equivalence, Verdict | None]:
    """Compare the real workers' state with the reference's, and reset it.

    Returns:
        The verdict, and once more if it is in doubt, for more references after the workers have ended.
    """
    outcome = first_steps(processes, len(reference.losses), timeouts, steps_per_loop=steps_per_loop)
    processes.call(training.load, [()] * len(processes.pids), timeout_s=timeouts.setup_s, stage="load")
    verdict = reference.judge(outcome)
    equivalence = replace(
        equivalence_of(verdict),
        separable=None if reference.separability is None else reference.separability.separable,
        separability=None if reference.separability is None else reference.separability.explanation,
        checked_in_repeat=repeat,
    )
    return equivalence, verdict if reference.may_be_rounding(verdict, strategy_class) else None


def reference_of(captures: Captures, case: Case, capture: Capture, n_steps: int) -> Reference:
    """Reference of a case, after the comparison of its shards with the whole batch."""
    topology = topology_of_case(case, capture)
    separability = captures.separability(case, topology)
    return replace(captures.reference(case, capture, topology, n_steps), separability=separability)


def equivalence_of(verdict: Verdict, dtype: CheckedType = "model") -> Equivalence:
    """Verdict in the form of records, without fields of the reference and the repeat."""
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


def with_capture(
    equivalence: Equivalence, capture: CaptureVerdict | None, *, is_control: bool
) -> Equivalence:
    """Add the verdict on the capture to a check's outcome; a wrong capture makes the case not equivalent.

    Args:
        capture: None if the capture was not checked.
        is_control: True for a strategy that is wrong on purpose, whose outcome stays.
    """
    if capture is None:
        return equivalence
    beside = replace(equivalence, captured=capture.equal, capture=capture.explanation)
    if capture.equal is not False or is_control:
        return beside
    return replace(beside, checked=True, equivalent=False, reason=capture.explanation)


def first_steps(
    processes: ProcessSet, n_steps: int, timeouts: Timeouts = USUAL, *, steps_per_loop: int = 1
) -> Outcome:
    """Run the first steps on ready processes, and read all copies of all variables.

    Args:
        steps_per_loop: largest number of steps in one run; there are at least two runs.
    """
    n_workers = len(processes.pids)
    known_s: list[float] = []
    losses: list[float] = []
    most = min(steps_per_loop, -(-n_steps // 2))
    for first in range(0, n_steps, most):
        n_run = min(most, n_steps - first)
        started_s = time.monotonic()
        ran = processes.call(
            training.run_steps,
            [(n_run, first)] * n_workers,
            timeout_s=timeouts.steps_s(n_run, known_s),
            stage="check",
        )
        known_s.append((time.monotonic() - started_s) / n_run)
        losses += (sum(float(steps.times.losses[k] @ steps.weights) for steps in ran) for k in range(n_run))
    pieces = processes.call(
        training.read_variables, [()] * n_workers, timeout_s=timeouts.setup_s, stage="check"
    )
    return Outcome(values=values_of(pieces), losses=tuple(losses))


IN_FLOAT64 = (
    "checked in float64, all workers in one process: rounding hides too much in the model's own types"
)
"""Note on a verdict if rounding made that of the workers inconclusive."""

DRAWN_OTHERWISE = "its step draws random numbers, and programs for TPUs draw others than the reference does"
"""Reason why steps of real devices cannot show equivalence."""
EMULATED = "in float64, emulated on processors,"
"""Beginning of the reason's part about the graph in that case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseChecks:
    """Checks of a run's cases; a result applies to all later repeats.

    Args:
        known: verdict on a case that was checked before.
        keep: called with a failed check if its workers did not fail.
    """

    captures: Captures
    known: Callable[[Case], Equivalence | None]
    keep: Callable[[CaseError], None]

    def reference(self, case: Case, capture: Capture) -> Reference | None:
        # With faults, it differs from the reference on purpose.
        is_held = case.chosen.strategy.strategy_class in COMPARED_WITH_REFERENCE and not case.scenario.faults
        if self.known(case) is not None or not is_held:
            return None
        return reference_of(self.captures, case, capture, CHECK_STEPS)

    def bounded(self, case: Case, capture: Capture, plan: Plan, *, repeat: int) -> Equivalence | None:
        """Compare a compressed strategy's losses with its bounds, in a separate process.

        None if the case was checked in an earlier repeat, or is of another class. All workers share one
        process, which may need too much memory; that does not affect the measurement.
        """
        if self.known(case) is not None or plan.strategy_class != "bounded" or plan.faults:
            return None
        separability = self.captures.separability(case, topology_of_case(case, capture))
        dtype: CheckedType = "model"
        try:
            verdict = self.captures.bounds(case, capture, _on_cpus(plan), CHECK_STEPS, float64=False)
        except WorkerFailure as error:
            if isinstance(error.cause, CutOff) or not (error.is_lost or error.was_refused_memory):
                raise
            return Equivalence(checked=False, reason=f"the check did not end: {first_line(str(error))}")
        if verdict.within is None:
            try:
                with own_errors():
                    verdict = self.captures.bounds(case, capture, _on_cpus(plan), CHECK_STEPS, float64=True)
                dtype = "float64"
            except CaseError as error:
                verdict = replace(verdict, reason=f"{verdict.reason}; in float64: {first_line(str(error))}")
        return Equivalence(
            checked=True,
            within_bound=verdict.within,
            reason=verdict.reason,
            dtype=dtype,
            undecidable=verdict.undecidable,
            separable=separability.separable,
            separability=separability.explanation,
            checked_in_repeat=repeat,
        )

    def judged_again(
        self, case: Case, capture: Capture, plan: Plan, doubt: Verdict, equivalence: Equivalence
    ) -> Equivalence:
        """Judge a verdict in doubt by more references.

        Args:
            equivalence: the same verdict; returned if the reference draws other random numbers, and with the
                reason if no more references can be made.
        """
        if plan.device == "tpu" and capture.facts.draws:
            return equivalence
        topology = topology_of_case(case, capture)
        try:
            with own_errors():
                tolerances = self.captures.more_tolerances(case, capture, topology, CHECK_STEPS)
        except CaseError as error:
            self.keep(error)
            return replace(equivalence, reason=f"{equivalence.reason}; {without_more_references(error)}")
        return _instead(equivalence, equivalence_of(tolerances.judge_again(doubt)))

    def decided(self, case: Case, capture: Capture, plan: Plan, equivalence: Equivalence) -> Equivalence:
        """Decide in float64, on CPUs outside the workers, if the workers' own steps are inconclusive.

        For devices that compile their own programs, the result is evidence, not a verdict, unless the graph
        is wrong.

        Args:
            equivalence: outcome of the workers' steps; returned if it is conclusive, if there is no captured
                graph to rewrite, and, with the reason, if float64 is impossible.
        """
        on_devices = plan.device == "tpu"
        if on_devices and capture.facts.draws and _is_finite_fault(equivalence):
            equivalence = replace(
                equivalence, equivalent=None, reason=f"{DRAWN_OTHERWISE}: {equivalence.reason}"
            )
        hidden = (
            equivalence.checked
            and equivalence.equivalent is None
            and plan.strategy_class in COMPARED_WITH_REFERENCE
        )
        if not hidden or case.chosen.strategy.runner != "graph":
            return equivalence
        try:
            with own_errors():
                verdict = self._in_float64(case, capture, plan)
        except CaseError as error:
            self.keep(error)
            return replace(equivalence, reason=f"{equivalence.reason}; in float64: {first_line(str(error))}")
        wide = equivalence_of(verdict, dtype="float64")
        if on_devices and not wide.wrong:
            word = "equivalent" if wide.equivalent else "undecidable"
            return replace(equivalence, reason=f"{equivalence.reason}; {EMULATED} it is {word}")
        return _instead(equivalence, wide)

    def _in_float64(self, case: Case, capture: Capture, plan: Plan) -> Verdict:
        """Verdict in float64, after more steps if a trainable has not moved in the usual number.

        In that case, the step accumulates gradients over steps, or its learning rate begins with zero.
        """
        verdict = self.captures.verdict_in_float64(case, capture, _on_cpus(plan), CHECK_STEPS)
        if verdict.equivalent is not None or not any(v.unmoved for v in verdict.variables):
            return verdict
        n_steps = min(MORE_CHECK_STEPS, self.captures.n_batches)
        if n_steps > CHECK_STEPS:
            with suppress(CaseError):
                return self.captures.verdict_in_float64(case, capture, _on_cpus(plan), n_steps)
        return verdict


def _instead(first: Equivalence, second: Equivalence) -> Equivalence:
    """A second verdict, with the first one's facts about the shards and the repeat."""
    return replace(
        second,
        separable=first.separable,
        separability=first.separability,
        checked_in_repeat=first.checked_in_repeat,
    )


def _is_finite_fault(equivalence: Equivalence) -> bool:
    """True if workers' steps differ from the reference as if they had drawn other random numbers."""
    error = equivalence.max_update_error
    return equivalence.equivalent is False and error is not None and isfinite(error)


def _on_cpus(plan: Plan) -> Plan:
    """The plan for CPUs: workers in one process would have to share a GPU."""
    nodes = tuple(
        node.model_copy(update={"transport": "auto"}) if node.transport == "nccl" else node
        for node in plan.nodes
    )
    return plan.model_copy(update={"device": "cpu", "shares_devices": False, "nodes": nodes})
