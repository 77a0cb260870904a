"""Verdict on a capture: the captured step's numbers beside those of the workload's own step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from harness.verification.reference import Outcome, Yardstick
from harness.verification.verdict import Limits, Verdict, named

_FAULT = (
    "capture has changed the step, which is a fault of stratbench and not of the workload: report it with "
    "the workload's file, and trust no figure of it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureVerdict:
    """Verdict on a capture.

    Attributes:
        equal: None where it is not known.
        explanation: a sentence with the reason and the remedy; it ends with what was not compared.
        worst: the variable nearest to its tolerance, None without any.
        max_error, tolerance: of that variable.
        not_compared: names of variables that were not compared.
    """

    equal: bool | None
    explanation: str
    steps: int = 0
    worst: str | None = None
    max_error: float | None = None
    tolerance: float | None = None
    not_compared: tuple[str, ...] = ()


def judge(
    captured: Yardstick, users: Outcome, rounded: Callable[[], Yardstick], not_compared: Sequence[str] = ()
) -> CaptureVerdict:
    """Compare what a user's own step leaves behind with what the captured one does.

    Args:
        captured: the captured step's state and losses, without noise floors.
        users: the user's; its losses are empty where they cannot be compared.
        rounded: measures the effect of rounding on the captured step; called only if it matters.
        not_compared: names of variables that were left out.
    """
    losses = users.losses or None
    verdict = _exact_decide(captured.judge(users.values, losses))
    if verdict.equivalent is not True:
        measured = rounded()
        limited = replace(captured, limits=measured.limits, loss_limits=measured.loss_limits)
        verdict = _exact_decide(limited.judge(users.values, losses))
    nearest, left_out = verdict.nearest, (*not_compared, *verdict.undecidable)
    return CaptureVerdict(
        equal=verdict.equivalent,
        explanation=_with_names(_explanation(verdict, captured.n_steps), left_out),
        steps=captured.n_steps,
        worst=None if nearest is None else nearest.name,
        max_error=None if nearest is None else nearest.update_error,
        tolerance=None if nearest is None else nearest.limits.tolerance,
        not_compared=left_out,
    )


def not_comparable(reason: str, not_compared: Sequence[str] = ()) -> CaptureVerdict:
    """Return the verdict "not known".

    Args:
        reason: the obstacle, and what to do about it.
    """
    explanation = f"the captured step was not compared with the workload's own: {reason}"
    return CaptureVerdict(
        equal=None,
        explanation=_with_names(explanation, not_compared),
        not_compared=tuple(not_compared),
    )


def fault(reason: str, not_compared: Sequence[str] = ()) -> CaptureVerdict:
    """Return the verdict "changed by capture", for a difference that no number shows."""
    return CaptureVerdict(
        equal=False,
        explanation=_with_names(f"{reason}; {_FAULT}", not_compared),
        not_compared=tuple(not_compared),
    )


def _with_names(explanation: str, not_compared: Sequence[str]) -> str:
    return f"{explanation}; not compared: {named(not_compared)}" if not_compared else explanation


def _exact_decide(verdict: Verdict) -> Verdict:
    variables = tuple(
        replace(v, limits=Limits(floor=0.0, tolerance=0.0, eps=v.limits.eps)) if v.update_error == 0.0 else v
        for v in verdict.variables
    )
    return replace(verdict, variables=variables)


def _explanation(verdict: Verdict, n_steps: int) -> str:
    compared = f"{n_steps} steps of the captured step and of the workload's own as plain TensorFlow"
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
