"""The verdict on a capture, from the state and the losses that two steps leave behind."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from harness.verification.reference import Checked, Outcome, Reference, Tolerances
from harness.verification.verification import fault, judge_capture, not_comparable
from harness.worker.variable_parts import Copy

EPS = 2.0**-23
W, SLOT = ("w", None), ("m", None)
VARIABLES = [
    Checked(name="w", kind="trainable", group="trainable", eps=EPS),
    Checked(name="m", kind="slot", group="momentum", eps=EPS),
]


def outcome(w: float = 1.0, m: float = 0.5, losses: Sequence[float] | None = (2.0, 1.0)) -> Outcome:
    values: dict[Copy, np.ndarray] = {W: np.full(3, w, np.float64), SLOT: np.full(3, m, np.float64)}
    return Outcome(values=values, losses=losses)


def captured(*others: Outcome) -> Reference:
    """The captured step's state, with the noise of other references if there are any."""
    own = replace(outcome(), initial=outcome(0.0, 0.0).values)
    return Reference.of(VARIABLES, own, others or [outcome()], loss_eps=EPS, gradient_eps=EPS)


def measured(*others: Outcome) -> Callable[[], Tolerances]:
    return lambda: captured(*others).tolerances


def nobody() -> Tolerances:
    raise AssertionError("rounding was measured though it could change nothing")


def test_equal_numbers_need_no_measure_of_rounding() -> None:
    verdict = judge_capture(captured(), outcome(), nobody, nobody)
    assert (verdict.equal, verdict.max_error, verdict.steps) == (True, 0.0, 2)
    assert "agree bit for bit" in verdict.explanation


def test_what_a_stored_number_rounds_to_needs_none_either() -> None:
    verdict = judge_capture(captured(), outcome(w=1.0 + 4 * EPS), nobody, nobody)
    assert verdict.equal is True
    assert verdict.worst == "w"
    assert "of an update at most" in verdict.explanation


@pytest.mark.parametrize("wrong", [outcome(w=1.01), outcome(m=0.51), outcome(losses=(2.0, 1.1))])
def test_a_difference_that_rounding_does_not_make_is_a_fault(wrong: Outcome) -> None:
    verdict = judge_capture(captured(), wrong, measured(outcome(w=1.0 + EPS)), measured(outcome(w=1.0 + EPS)))
    assert verdict.equal is False
    assert "bug in stratbench" in verdict.explanation
    assert "\n" not in verdict.explanation


def test_a_fault_names_its_variable_with_error_and_tolerance() -> None:
    verdict = judge_capture(captured(), outcome(m=0.6), measured(), measured())
    assert verdict.worst == "m"
    assert verdict.max_error == pytest.approx(0.2)
    assert verdict.tolerance is not None
    assert verdict.explanation.startswith("m is off by 0.2, the tolerance is ")


def test_rounding_explains_what_it_makes() -> None:
    verdict = judge_capture(captured(), outcome(w=1.002), measured(outcome(w=1.001)), nobody)
    assert verdict.equal is True


def test_more_references_may_explain_what_few_do_not() -> None:
    few, more = measured(outcome(w=1.0 + EPS)), measured(outcome(w=1.002), outcome(m=0.501))
    assert judge_capture(captured(), outcome(w=1.01), few, more).equal is True
    assert judge_capture(captured(), outcome(m=0.55), few, more).equal is False


def test_what_rounding_hides_is_named_with_a_way_out() -> None:
    verdict = judge_capture(captured(), outcome(w=1.2), measured(outcome(w=1.1)), nobody)
    assert verdict.equal is None
    assert verdict.not_compared == ("w",)
    assert "set_floatx('float64')" in verdict.explanation


def test_rounding_hides_nothing_of_what_is_the_same() -> None:
    tiny = [replace(v, eps=0.1) for v in VARIABLES]
    own = replace(outcome(), initial=outcome(0.0, 0.0).values)
    wide = Reference.of(tiny, own, [outcome()], loss_eps=EPS)
    assert not any(limits.decide for limits in wide.tolerances.limits.values())
    assert judge_capture(wide, outcome(), nobody, nobody).equal is True


def test_a_step_without_losses_is_held_to_its_variables() -> None:
    assert judge_capture(captured(), outcome(losses=None), nobody, nobody).equal is True


def test_every_explanation_ends_with_what_was_left_out() -> None:
    equal = judge_capture(captured(), outcome(), nobody, nobody, ["noise"])
    assert equal.not_compared == ("noise",)
    assert equal.explanation.endswith("agree bit for bit; not compared: noise")
    assert judge_capture(captured(), outcome(w=1.1), measured(), measured(), ["noise"]).explanation.endswith(
        "; not compared: noise"
    )
    unknown = not_comparable("it raised", ["w", "noise"])
    assert (unknown.equal, unknown.not_compared, unknown.max_error) == (None, ("w", "noise"), None)
    assert unknown.explanation.endswith("own: it raised; not compared: w, noise")
    assert "not compared:" not in judge_capture(captured(), outcome(), nobody, nobody).explanation


def test_a_fault_that_no_number_shows_names_its_reason() -> None:
    verdict = fault("the captured step raised InvalidArgumentError")
    assert verdict.equal is False
    assert verdict.explanation.startswith("the captured step raised InvalidArgumentError; ")
    assert "bug in stratbench" in verdict.explanation
