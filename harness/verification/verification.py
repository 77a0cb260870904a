"""Verification of a strategy: its verdict, further figures, and whether it passes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from harness.errors import CaseError, first_line
from harness.verification.reference import ComparedResult, Outcome, Reference, Tolerances
from harness.verification.separability import Separability
from harness.verification.verdict import BoundVerdict, Limits, Verdict, named
from strategies.plan.schema import COMPARED_WITH_REFERENCE, StrategyClass

RANDOM_NOTE = (
    "the step draws random numbers, as dropout does: each replica draws its own, and the single-device run "
    "draws the same ones for the same shard, so that results must agree"
)
BY_MORE_REFERENCES = "the check seemed wrong by three references; more were requested"
"""Note on a verdict if rounding could have made the difference."""
_FAULT = (
    "capture changed the step, which is a bug in stratbench and not in the workload: report it with the "
    "workload's file, and do not trust its figures"
)


def without_more_references(error: CaseError) -> str:
    """Note on a verdict in doubt for which no more references could be made."""
    return f"more references were not made: {first_line(str(error))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureVerdict:
    """Verdict on a capture.

    Attributes:
        equal: None if unknown.
        explanation: a sentence with the reason and the remedy; it ends with the parts that were not compared.
        worst: variable nearest to its tolerance; None without any.
        max_error, tolerance: figures of that variable.
        not_compared: names of variables, or the loss, that were not compared.
    """

    equal: bool | None
    explanation: str
    steps: int = 0
    worst: str | None = None
    max_error: float | None = None
    tolerance: float | None = None
    not_compared: tuple[str, ...] = ()


def judge_capture(
    captured: Reference,
    users: Outcome,
    rounded: Callable[[], Tolerances],
    rounded_more: Callable[[], Tolerances],
    not_compared: Sequence[str] = (),
) -> CaptureVerdict:
    """Compare the results of a user's own step with those of the captured one.

    Args:
        captured: variables and losses of the captured step, without noise floors.
        users: variables and losses of the user's step; losses are None if they cannot be compared.
        rounded, rounded_more: measure the effect of rounding on the captured step by a few references, and by
            more; called only if it matters.
        not_compared: names of variables that were left out, or of the loss.
    """
    verdict = _exact_decide(captured.judge(users))
    if verdict.equivalent is not True:
        limited = replace(captured, tolerances=rounded())
        verdict = limited.judge(users)
        if limited.may_be_rounding(verdict):
            verdict = rounded_more().judge_again(verdict)
        verdict = _exact_decide(verdict)
    nearest, left_out = verdict.nearest, (*not_compared, *verdict.undecidable)
    return CaptureVerdict(
        equal=verdict.equivalent,
        explanation=_with_names(_explanation(verdict, len(captured.losses)), left_out),
        steps=len(captured.losses),
        worst=None if nearest is None else nearest.name,
        max_error=None if nearest is None else nearest.update_error,
        tolerance=None if nearest is None else nearest.limits.tolerance,
        not_compared=left_out,
    )


def not_comparable(reason: str, not_compared: Sequence[str] = ()) -> CaptureVerdict:
    """Verdict "not known".

    Args:
        reason: obstacle, and instruction for the user.
    """
    explanation = f"the captured step was not compared with the workload's own: {reason}"
    return CaptureVerdict(
        equal=None,
        explanation=_with_names(explanation, not_compared),
        not_compared=tuple(not_compared),
    )


def fault(reason: str) -> CaptureVerdict:
    """Verdict "changed by capture", for a difference without a figure."""
    return CaptureVerdict(equal=False, explanation=f"{reason}; {_FAULT}")


def _with_names(explanation: str, not_compared: Sequence[str]) -> str:
    return f"{explanation}; not compared: {named(not_compared)}" if not_compared else explanation


def _exact_decide(verdict: Verdict) -> Verdict:
    variables = tuple(
        replace(v, limits=Limits(floor=0.0, tolerance=0.0, eps=v.limits.eps)) if v.update_error == 0.0 else v
        for v in verdict.variables
    )
    return replace(verdict, variables=variables)


def _explanation(verdict: Verdict, n_steps: int) -> str:
    compared = f"{n_steps} steps of the captured graph and of your own code in plain TensorFlow"
    if verdict.equivalent:
        largest = max((v.update_error for v in verdict.variables if v.decidable), default=0.0)
        agree = "agree bit for bit" if largest == 0.0 else f"differ by {largest:.1e} of an update at most"
        return f"{compared} {agree}"
    if verdict.equivalent is False:
        return f"{verdict.reason}, between {compared}; {_FAULT}"
    hidden = named(verdict.undecidable)
    return (
        f"rounding alone may make the difference of {hidden} between {compared}; to know, build the model "
        "with keras.config.set_floatx('float64')"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Point at which a strategy diverges from the reference.

    Attributes:
        pass_name: first pass after which it diverges. variable: first diverging variable or layer.
    """

    pass_name: str
    variable: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Results of a strategy, compared with the reference.

    Attributes:
        verdict: comparison with the exact reference, for any class of strategy.
        losses, reference_losses: global losses of each step.
        results: values that the last step returned besides its loss.
        bound: verdict on a compressed strategy's bounds; None for other strategies.
        divergence: None if nothing diverges or it was not requested.
        capture: verdict on the captured step, common to reference and strategy; None if not requested.
    """

    strategy_class: StrategyClass
    verdict: Verdict
    losses: tuple[float, ...]
    reference_losses: tuple[float, ...]
    separability: Separability | None
    results: tuple[ComparedResult, ...] = ()
    bound: BoundVerdict | None = None
    divergence: Divergence | None = None
    capture: CaptureVerdict | None = None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_held_to_the_reference(self) -> bool:
        return self.strategy_class in COMPARED_WITH_REFERENCE

    @property
    def equivalent(self) -> bool | None:
        """Verdict of a strategy that must equal the reference; None for any other.

        If the captured step differs from the user's, the reference proves nothing.
        """
        if not self.is_held_to_the_reference:
            return None
        return False if self.is_captured_wrong else self.verdict.equivalent

    @property
    def is_captured_wrong(self) -> bool:
        return self.capture is not None and self.capture.equal is False

    @property
    def reason(self) -> str | None:
        if self.capture is not None and self.is_captured_wrong:
            return self.capture.explanation
        if self.bound is not None:
            return self.bound.reason
        return self.verdict.reason if self.is_held_to_the_reference else None

    @property
    def undecidable(self) -> tuple[str, ...]:
        return self.verdict.undecidable if self.bound is None else self.bound.undecidable

    @property
    def passes(self) -> bool:
        if self.is_captured_wrong:
            return False
        if self.bound is not None:
            return self.bound.within is True
        return self.strategy_class == "statistical" or self.equivalent is True
