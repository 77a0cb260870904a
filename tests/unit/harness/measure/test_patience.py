"""How long a hang can last, and that slow steps are not taken for one."""

from hypothesis import given
from hypothesis import strategies as st

from harness.measure.patience import FIRST_STEP_S, patience_s

seconds = st.floats(1e-5, 1e3)


def test_the_first_step_may_take_minutes() -> None:
    assert patience_s(1, []) == FIRST_STEP_S


def test_a_hang_in_a_quick_window_ends_within_a_minute() -> None:
    assert patience_s(50, [2.0, *[0.04] * 10]) < 60


@given(st.integers(1, 1000), seconds, st.integers(1, 30))
def test_steps_that_take_four_times_as_long_as_before_are_waited_for(
    n: int, each_s: float, known: int
) -> None:
    assert patience_s(n, [each_s] * known) > 4 * n * each_s


@given(st.integers(1, 1000), seconds)
def test_one_slow_first_step_does_not_count_for_ever(n: int, each_s: float) -> None:
    assert patience_s(n, [1000 * each_s, *[each_s] * 9]) == patience_s(n, [each_s] * 9)
