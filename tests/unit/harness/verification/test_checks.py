"""Decisions where the workers' own steps show nothing."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from harness.cluster import ClusterShape
from harness.errors import CaseError
from harness.experiment.cases import Case
from harness.experiment.references import StrategyRef, WorkloadRef
from harness.measure.timeouts import USUAL
from harness.records.outcome import Equivalence
from harness.verification import checks
from harness.verification.captures import Capture
from harness.verification.checks import CHECK_STEPS, CaseChecks
from harness.verification.reference import Checked, Outcome, Reference
from harness.verification.separability import Separability
from harness.verification.verdict import BoundVerdict, Limits, VariableVerdict, Verdict
from harness.verification.worker.capture import CapturedWorkload
from strategies.plan.schema import Plan, StepSummary
from strategies.registry import make_plan
from strategies.topology import Topology

HIDDEN = Equivalence(
    checked=True, reason="only 2 % can be judged", undecidable=("w",), separable=True, checked_in_repeat=1
)


def verdict(update_error: float, tolerance: float = 1e-9) -> Verdict:
    limits = Limits(floor=tolerance / 10, tolerance=tolerance, eps=2.0**-52)
    variable = VariableVerdict(
        name="w", kind="trainable", group="trainable", n_elements=4, update_error=update_error, limits=limits
    )
    return Verdict(variables=(variable,))


def case_and_capture(strategy: str = "all-reduce", *, draws: bool = False) -> tuple[Case, Capture]:
    shape = ClusterShape(workers=2)
    case = Case(id="c", workload=WorkloadRef(reference="w"), strategy=StrategyRef(name=strategy), shape=shape)
    summary = StepSummary(workload="w", variables=(), batch=(), n_nodes=1)
    facts = CapturedWorkload(
        summary=summary, batch_size=8, flops_per_example=None, replica_batch=None, draws=draws
    )
    return case, Capture(folder=Path(), facts=facts)


@dataclass
class InFloat64:
    """Stands for `Captures`: answers with one verdict, or fails."""

    answer: Verdict | Exception
    plans: list[Plan] = field(default_factory=list)
    n_batches: int = 20

    def verdict_in_float64(self, case: Case, capture: Any, plan: Plan, n_steps: int) -> Verdict:
        self.plans.append(plan)
        if isinstance(self.answer, Exception):
            raise self.answer
        if n_steps > CHECK_STEPS:
            assert n_steps == self.n_batches
            return verdict(1e-12)
        return self.answer


def decided(
    answer: Verdict | Exception,
    equivalence: Equivalence = HIDDEN,
    strategy: str = "all-reduce",
    *,
    failures: list[CaseError] | None = None,
    device: Any = "cpu",
    draws: bool = False,
) -> Any:
    captures: Any = InFloat64(answer)
    case, capture = case_and_capture(strategy, draws=draws)
    plan = make_plan("all-reduce", {}, capture.summary, Topology(replicas_per_task=(1, 1), batch_size=8))
    failed = [] if failures is None else failures
    case_checks = CaseChecks(captures=captures, known=lambda _: None, keep=failed.append)
    decision = case_checks.decided(
        case,
        capture,
        plan.model_copy(update={"device": device}),
        equivalence,
    )
    return decision, captures.plans


def test_float64_decides_what_rounding_hides() -> None:
    decision, requests = decided(verdict(1e-12))
    assert len(requests) == 1
    assert (decision.equivalent, decision.dtype, decision.reason) == (True, "float64", None)
    assert (decision.max_update_error, decision.undecidable) == (1e-12, ())
    assert (decision.separable, decision.checked_in_repeat) == (True, 1)


def test_what_is_wrong_in_float64_is_wrong() -> None:
    decision, _ = decided(verdict(0.5))
    assert (decision.equivalent, decision.dtype) == (False, "float64")
    assert decision.wrong


def test_what_float64_cannot_tell_either_stays_undecidable() -> None:
    decision, _ = decided(verdict(0.0, tolerance=0.5))
    assert (decision.equivalent, decision.dtype) == (None, "float64")
    assert "compare fewer steps" in decision.reason


@pytest.mark.parametrize(
    "equivalence",
    [
        Equivalence(checked=True, equivalent=True),
        Equivalence(checked=True, equivalent=False, reason="w is off"),
        Equivalence(checked=False),
    ],
    ids=["equivalent", "wrong", "not checked"],
)
def test_what_workers_steps_told_is_not_asked_again(equivalence: Equivalence) -> None:
    assert decided(verdict(0.5), equivalence) == (equivalence, [])


WRONG = Equivalence(
    checked=True, equivalent=False, reason="w is off by 0.5", max_update_error=0.5, separable=True
)


@pytest.mark.parametrize("strategy", ["all-reduce", "tf-tpu"])
def test_random_numbers_of_tpus_are_no_fault_and_no_proof(strategy: str) -> None:
    decision, _ = decided(verdict(1e-12), WRONG, strategy, device="tpu", draws=True)
    assert (decision.equivalent, decision.dtype, decision.max_update_error) == (None, "model", 0.5)
    assert decision.reason.startswith("its step draws random numbers")
    assert "w is off by 0.5" in decision.reason
    assert ("emulated on processors, it is equivalent" in decision.reason) == (strategy == "all-reduce")


@pytest.mark.parametrize(
    ("device", "draws", "error"), [("cpu", True, 0.5), ("tpu", False, 0.5), ("tpu", True, math.inf)]
)
def test_other_faults_stay(device: str, draws: bool, error: float) -> None:
    wrong = replace(WRONG, max_update_error=error)
    assert decided(verdict(1e-12), wrong, device=device, draws=draws) == (wrong, [])


def test_a_graph_that_is_wrong_by_itself_is_wrong_on_tpus() -> None:
    decision, (plan,) = decided(verdict(0.5), WRONG, device="tpu", draws=True)
    assert decision.wrong
    assert (decision.dtype, plan.device) == ("float64", "cpu")


def test_what_rounding_hides_on_tpus_is_not_decided_by_their_emulation() -> None:
    decision, _ = decided(verdict(1e-12), device="tpu")
    assert (decision.equivalent, decision.dtype) == (None, "model")
    assert decision.reason.endswith("in float64, emulated on processors, it is equivalent")


def test_what_has_no_captured_graph_stays_undecidable() -> None:
    assert decided(verdict(0.0), strategy="tf-multi-worker-mirrored") == (HIDDEN, [])


@pytest.mark.parametrize(
    ("error", "message", "is_kept"),
    [
        (
            CaseError("worker-died", "too little memory", stage="check"),
            "in float64: too little memory",
            False,
        ),
        (ValueError("no such op"), "in float64: unexpected ValueError: no such op", True),
    ],
    ids=["of a worker", "our own"],
)
def test_why_float64_was_not_tried_is_told(error: Exception, message: str, is_kept: bool) -> None:
    failures: list[CaseError] = []
    decision, _ = decided(error, failures=failures)
    assert decision.equivalent is None
    assert decision.reason.startswith("only 2 % can be judged; ")
    assert message in decision.reason
    (failure,) = failures
    assert ("Traceback" in "".join(getattr(failure, "__notes__", ()))) == is_kept


def test_what_has_not_moved_is_given_more_steps() -> None:
    (still,) = verdict(0.0).variables
    decision, requests = decided(Verdict(variables=(replace(still, unmoved=True),)))
    assert (decision.equivalent, len(requests)) == (True, 2)
    # Rounding that hides a variable hides more of it after more steps.
    decision, requests = decided(verdict(0.0, tolerance=0.5))
    assert (decision.equivalent, len(requests)) == (None, 1)


@dataclass
class Bounds:
    """Stands for `Captures`: answers by the type that the check computes in, or fails."""

    answers: dict[bool, BoundVerdict | CaseError]

    def bounds(self, case: Case, capture: Any, plan: Plan, n_steps: int, *, float64: bool) -> BoundVerdict:
        answer = self.answers[float64]
        if isinstance(answer, CaseError):
            raise answer
        return answer

    def separability(self, case: Case, topology: Topology) -> Separability:
        return Separability(separable=True, explanation="")


@pytest.mark.parametrize("within", [True, False, None])
def test_a_bound_that_rounding_hides_is_looked_at_in_float64(within: bool | None) -> None:
    hidden = BoundVerdict(within=None, reason="rounding leaves nothing of w")
    wide = BoundVerdict(within=within, reason=None if within else "why")
    bound = bounded({False: hidden, True: wide})
    assert (bound.within_bound, bound.dtype, bound.reason) == (within, "float64", wide.reason)
    narrow = bounded({False: BoundVerdict(within=True, reason=None)})
    assert (narrow.within_bound, narrow.dtype) == (True, "model")


def test_a_bound_that_float64_cannot_tell_stays_hidden_and_says_why() -> None:
    hidden = BoundVerdict(within=None, reason="rounding leaves nothing of w")
    bound = bounded({False: hidden, True: CaseError("worker-error", "no float64", stage="check")})
    assert (bound.checked, bound.within_bound, bound.dtype) == (True, None, "model")
    assert bound.reason == "rounding leaves nothing of w; in float64: no float64"


def bounded(answers: dict[bool, BoundVerdict | CaseError]) -> Any:
    captures: Any = Bounds(answers)
    shape = ClusterShape(workers=2)
    strategy = StrategyRef(name="all-reduce", params={"compressor": "topk"})
    case = Case(id="c", workload=WorkloadRef(reference="w"), strategy=strategy, shape=shape)
    summary = StepSummary(workload="w", variables=(), batch=(), n_nodes=1)
    plan = make_plan(
        "all-reduce", {"compressor": "topk"}, summary, Topology(replicas_per_task=(1, 1), batch_size=8)
    )
    facts = CapturedWorkload(summary=summary, batch_size=8, flops_per_example=None, replica_batch=None)
    checks = CaseChecks(captures=captures, known=lambda _: None, keep=lambda _: None)
    return checks.bounded(case, Capture(folder=Path(), facts=facts), plan, repeat=0)


DOUBT = verdict(0.01)


def judged_again(
    answer: Verdict | CaseError, failures: list[CaseError], *, device: str = "cpu", draws: bool = False
) -> Equivalence:
    """Judge workers' steps again that were called wrong; the answer stands for more references'."""

    def again(first: Verdict) -> Verdict | CaseError:
        assert first is DOUBT
        return answer

    def more_tolerances(*_: object) -> object:
        if isinstance(answer, CaseError):
            raise answer
        return SimpleNamespace(judge_again=again)

    captures = SimpleNamespace(more_tolerances=more_tolerances)
    case_checks = CaseChecks(captures=cast("Any", captures), known=lambda _: None, keep=failures.append)
    plan = cast("Any", SimpleNamespace(device=device))
    return case_checks.judged_again(*case_and_capture(draws=draws), plan, DOUBT, SLIGHTLY_WRONG)


SLIGHTLY_WRONG = Equivalence(
    checked=True, equivalent=False, reason="w is off by 0.01", separable=True, checked_in_repeat=1
)


@pytest.mark.parametrize(
    ("answer", "equivalent"),
    [(verdict(0.01, 0.02), True), (verdict(0.01, 0.5), None), (verdict(0.01), False)],
)
def test_the_verdict_of_more_references_takes_the_place_of_the_first(
    answer: Verdict, equivalent: bool | None
) -> None:
    again = judged_again(answer, failures := [])
    assert (again.equivalent, again.reason, failures) == (equivalent, answer.reason, [])
    assert (again.separable, again.checked_in_repeat) == (True, 1)


def test_without_more_references_what_seemed_wrong_stays_wrong() -> None:
    error = CaseError("timeout", "no answer within 900 s", stage="check")
    again = judged_again(error, failures := [])
    assert again.wrong
    assert again.reason == "w is off by 0.01; more references were not made: no answer within 900 s"
    assert failures == [error]


def test_other_random_numbers_of_tpus_need_no_more_references() -> None:
    assert judged_again(verdict(0.01, 0.02), [], device="tpu", draws=True) is SLIGHTLY_WRONG


@pytest.mark.parametrize(("error", "doubts"), [(0.01, True), (0.0, False), (2.0, False)])
def test_workers_that_are_slightly_wrong_are_in_doubt(
    error: float, doubts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    eps = 2.0**-23
    start, end, actual = ({("w", None): np.full(2, value)} for value in (0.0, 1.0, 1.0 + error))
    own = Outcome(values=end, losses=(1.0,), initial=start)
    variables = [Checked(name="w", kind="trainable", group="trainable", eps=eps)]
    reference = Reference.of(variables, own, [own], loss_eps=eps, gradient_eps=eps)
    outcome = Outcome(values=actual, losses=(1.0,))
    monkeypatch.setattr(checks, "first_steps", lambda *_, **__: outcome)
    processes = SimpleNamespace(call=lambda *_, **__: None, pids=[1])
    equivalence, doubt = checks.checked(cast("Any", processes), reference, 3, USUAL, strategy_class="exact")
    assert (equivalence.equivalent, equivalence.checked_in_repeat) == (error == 0.0, 3)
    assert doubt == (reference.judge(outcome) if doubts else None)
