"""Checks of what each case of a run computes: on its workers, and beside them where these cannot tell."""

from contextlib import suppress
from dataclasses import dataclass, replace
from math import isfinite

from harness.equivalence.reference_outcome import Reference
from harness.equivalence.verdict import Verdict
from harness.errors import CaseError, first_line
from harness.experiment.cases import Case
from harness.provision.failures import JobOutOfMemory, WorkerDied, WorkerUnresponsive
from harness.records.facts.outcome import CheckedType, Equivalence
from harness.records.run_folder import RunFolder
from harness.run.captures import Capture, Captures, topology_of_case
from harness.run.case.check import CHECK_STEPS, MORE_CHECK_STEPS, equivalence_of
from harness.run.guards import own_mistakes, storing
from harness.run.recorder import RunRecorder
from strategies.plan.schema import HELD_TO_THE_REFERENCE, Plan

IN_FLOAT64 = (
    "checked in float64, all workers in one process: rounding hides too much in the model's own types"
)
"""Note on a verdict where rounding hid that of the workers."""

DRAWN_OTHERWISE = "its step draws random numbers, and programs for TPUs draw others than the reference does"
"""Why the steps of real devices tell nothing then."""
EMULATED = "in float64, emulated on processors,"
"""Begins what the reason says then of the graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseChecks:
    """The checks of a run's cases; what one found holds for all later repeats.

    Args:
        recorder: knows what was found.
        folder: keeps what is too long for a record.
    """

    captures: Captures
    recorder: RunRecorder
    folder: RunFolder

    def reference(self, case: Case, capture: Capture) -> Reference | None:
        """What to check workers against; None where the case has been checked before, or never is."""
        # With faults it must not be the reference's.
        is_held = case.chosen.strategy.strategy_class in HELD_TO_THE_REFERENCE and not case.scenario.faults
        if self.recorder.verdict(case) is not None or not is_held:
            return None
        return self.captures.reference(case, capture, topology_of_case(case, capture), CHECK_STEPS)

    def bounded(self, case: Case, capture: Capture, plan: Plan, *, repeat: int) -> Equivalence | None:
        """Whether a compressed strategy keeps within its bounds, found out beside its workers.

        None where the case was checked in an earlier repeat, or is of another class. All workers share a
        process, which may be too large for one: that costs no measurement.
        """
        if self.recorder.verdict(case) is not None or plan.strategy_class != "bounded" or plan.faults:
            return None
        separability = self.captures.separability(case, capture, topology_of_case(case, capture))
        dtype: CheckedType = "model"
        try:
            verdict = self.captures.bounds(case, capture, _on_cpus(plan), CHECK_STEPS, float64=False)
        except (WorkerDied, WorkerUnresponsive, JobOutOfMemory) as error:
            return Equivalence(checked=False, reason=f"the check did not end: {first_line(str(error))}")
        if verdict.within is None:
            try:
                with own_mistakes():
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

    def decided(
        self, case: Case, capture: Capture, plan: Plan, found: Equivalence, *, repeat: int
    ) -> Equivalence:
        """What workers' own steps could not tell, found out in float64 on processors beside them.

        Of devices that compile their own programs it is evidence and no verdict, unless the graph is wrong.

        Args:
            found: what their steps told; the answer where that is something, where there is no captured graph
                to rewrite, and, with the reason, where float64 cannot be tried.
        """
        on_devices = plan.device == "tpu"
        if on_devices and capture.facts.draws and _is_finite_fault(found):
            found = replace(found, equivalent=None, reason=f"{DRAWN_OTHERWISE}: {found.reason}")
        hidden = found.checked and found.equivalent is None and plan.strategy_class in HELD_TO_THE_REFERENCE
        if not hidden or case.chosen.strategy.runner != "graph":
            return found
        try:
            with own_mistakes():
                verdict = self._in_float64(case, capture, plan)
        except CaseError as error:
            with storing(self.folder.path):
                self.folder.write_failure(case.id, repeat, error)
            return replace(found, reason=f"{found.reason}; in float64: {first_line(str(error))}")
        wide = equivalence_of(verdict, dtype="float64")
        if on_devices and not wide.wrong:
            word = "equivalent" if wide.equivalent else "undecidable"
            return replace(found, reason=f"{found.reason}; {EMULATED} it is {word}")
        return replace(
            wide,
            separable=found.separable,
            separability=found.separability,
            checked_in_repeat=found.checked_in_repeat,
        )

    def _in_float64(self, case: Case, capture: Capture, plan: Plan) -> Verdict:
        """The verdict in float64; after more steps where some trainable has not moved in as many as usual.

        It accumulates gradients over steps, or its rate begins with zero.
        """
        verdict = self.captures.verdict_in_float64(case, capture, _on_cpus(plan), CHECK_STEPS)
        if verdict.equivalent is not None or not any(v.unmoved for v in verdict.variables):
            return verdict
        n_steps = min(MORE_CHECK_STEPS, self.captures.n_batches)
        if n_steps > CHECK_STEPS:
            with suppress(CaseError):
                return self.captures.verdict_in_float64(case, capture, _on_cpus(plan), n_steps)
        return verdict


def _is_finite_fault(found: Equivalence) -> bool:
    """Whether workers' steps differ from the reference by numbers, as those do that drew others."""
    error = found.max_update_error
    return found.equivalent is False and error is not None and isfinite(error)


def _on_cpus(plan: Plan) -> Plan:
    """A plan as workers that share a process can carry it out: they would have to share a GPU, too."""
    nodes = tuple(
        node.model_copy(update={"transport": "auto"}) if node.transport == "nccl" else node
        for node in plan.nodes
    )
    return plan.model_copy(update={"device": "cpu", "shares_devices": False, "nodes": nodes})
