"""Time limits: a hang ends soon, slow steps are no hang, and limits grow."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.measure.timeouts import FIRST_STEP_S, USUAL, Timeouts, timeouts
from strategies.plan.faults import Fault
from strategies.plan.schema import StepSummary, VariableSummary

seconds = st.floats(1e-5, 1e3)
LIMITS = ("command_s", "setup_s", "save_s")


def bert_base() -> StepSummary:
    table = VariableSummary(
        name="t", kind="trainable", dtype="float", shape=(110_000_000,), bytes=440_000_000
    )
    return StepSummary(workload="bert", n_nodes=17_000, variables=(table,), batch=())


def limits(of: Timeouts) -> list[float]:
    start = of.start
    return [
        *(of.capture_s, of.server_s, of.link_s, start.preload_s, start.fork_s),
        *(of.steps_s(3, []), of.steps_s(3, [2.0])),
        *(getattr(of, name) for name in LIMITS),
    ]


def test_the_first_step_may_take_minutes() -> None:
    assert USUAL.steps_s(1, []) == FIRST_STEP_S


def test_a_hang_in_a_quick_window_ends_within_a_minute() -> None:
    assert USUAL.for_model(bert_base(), 4).steps_s(50, [2.0, *[0.04] * 10]) < 60


@given(st.integers(1, 1000), seconds, st.integers(1, 30))
def test_steps_that_take_four_times_as_long_as_before_are_waited_for(
    n: int, each_s: float, known: int
) -> None:
    assert USUAL.steps_s(n, [each_s] * known) > 4 * n * each_s


@given(st.integers(1, 1000), seconds)
def test_one_slow_first_step_does_not_count_for_ever(n: int, each_s: float) -> None:
    assert USUAL.steps_s(n, [1000 * each_s, *[each_s] * 9]) == USUAL.steps_s(n, [each_s] * 9)


@given(st.integers(1, 100), seconds, st.integers(8, 30))
def test_steps_that_average_in_every_eighth_are_waited_for(n: int, average_s: float, known: int) -> None:
    steps_s = [average_s if step % 8 == 7 else 1e-3 for step in range(known)]
    assert USUAL.steps_s(n, steps_s, period=8) > 4 * -(-n // 8) * average_s


def test_what_was_not_seen_yet_of_a_period_may_take_as_long_as_a_first_step() -> None:
    assert USUAL.steps_s(9, [0.1], period=8) > FIRST_STEP_S


def test_delays_that_begin_later_are_waited_for() -> None:
    faults = [
        Fault(worker=0, kind="slow", delay_ms=1000.0),
        Fault(worker=1, kind="slow", delay_ms=2000.0, from_step=30),
        Fault(worker=1, kind="slow", delay_ms=4000.0, from_step=60),
        Fault(worker=1, kind="sign-flip"),
    ]
    longer = Timeouts(factor=0.1).for_faults(faults)
    assert longer.steps_s(50, [0.01] * 10) > 50 * 6.0
    assert USUAL.for_faults([]) == USUAL


@given(st.floats(0.1, 1000))
def test_a_factor_multiplies_every_limit(factor: float) -> None:
    for_model = timeouts(factor).for_model(bert_base(), 4)
    expected = [factor * limit for limit in limits(USUAL.for_model(bert_base(), 4))]
    assert limits(for_model) == pytest.approx(expected)


def test_limits_grow_with_the_model_and_its_copies() -> None:
    of_one, of_four = (USUAL.for_model(bert_base(), n) for n in (1, 4))
    for name in LIMITS:
        assert getattr(of_four, name) - getattr(USUAL, name) >= 240
        assert getattr(USUAL, name) < getattr(of_one, name) < getattr(of_four, name)
    assert of_four.steps_s(1, []) > of_one.steps_s(1, []) > FIRST_STEP_S
    small = bert_base().model_copy(update={"n_nodes": 900, "variables": ()})
    assert USUAL.for_model(small, 2).setup_s < USUAL.setup_s + 10


@pytest.mark.parametrize("factor", [0.0, -1.0, math.inf, math.nan, 1e9])
def test_a_factor_must_be_one(factor: float) -> None:
    with pytest.raises(UsageError, match=r"must be a number from 0\.1 to 1000, got") as raised:
        timeouts(factor)
    assert raised.value.field == "timeout-factor"
