"""Laws of ratios and intervals, and agreement with scipy's own tests."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from reports.statistics import StatisticsError, estimate, permutation_p, ratio

figure = st.floats(1e-6, 1e6)
repeats = st.lists(figure, min_size=1, max_size=7)
enough = st.lists(figure, min_size=3, max_size=7)


@given(repeats)
def test_estimate_is_the_geometric_mean(values: list[float]) -> None:
    assert estimate(values).value == pytest.approx(
        math.prod(v ** (1 / len(values)) for v in values), rel=1e-9
    )


@given(enough, enough, st.floats(1e-3, 1e3))
def test_ratio_does_not_depend_on_the_unit(top: list[float], bottom: list[float], unit: float) -> None:
    plain = ratio(top, bottom)
    scaled = ratio([v * unit for v in top], [v * unit for v in bottom])
    assert scaled.value == pytest.approx(plain.value, rel=1e-9)
    assert plain.interval is not None
    assert scaled.interval is not None
    assert _logs(scaled.interval) == pytest.approx(_logs(plain.interval), rel=1e-6, abs=1e-6)


@given(enough, enough)
def test_swapping_inverts_ratio_and_interval_and_keeps_p(top: list[float], bottom: list[float]) -> None:
    there, back = ratio(top, bottom), ratio(bottom, top)
    assert there.value * back.value == pytest.approx(1.0, rel=1e-9)
    assert there.interval is not None
    assert back.interval is not None
    low, high = _logs(back.interval)
    assert _logs(there.interval) == pytest.approx((-high, -low), rel=1e-6, abs=1e-6)
    assert there.p_value == (None if back.p_value is None else pytest.approx(back.p_value))


@given(enough)
def test_the_interval_holds_the_figure(values: list[float]) -> None:
    found = estimate(values)
    assert found.interval is not None
    assert found.interval.low <= found.value * (1 + 1e-12)
    assert found.interval.high >= found.value * (1 - 1e-12)


@given(st.lists(figure, min_size=1, max_size=6), st.lists(figure, min_size=1, max_size=6))
def test_order_of_repeats_does_not_matter(top: list[float], bottom: list[float]) -> None:
    shuffled = sorted(top)
    assert ratio(shuffled, bottom).value == pytest.approx(ratio(top, bottom).value)
    assert permutation_p(shuffled, bottom) == pytest.approx(permutation_p(top, bottom))


@given(st.lists(figure, min_size=3, max_size=6), st.lists(figure, min_size=3, max_size=6))
@settings(max_examples=30)
def test_welch_agrees_with_scipy(top: list[float], bottom: list[float]) -> None:
    x, y = np.log(top), np.log(bottom)
    assume(min(x.var(), y.var()) > 1e-6)
    theirs = stats.ttest_ind(x, y, equal_var=False).confidence_interval(0.95)
    ours = ratio(top, bottom).interval
    assert ours is not None
    assert _logs(ours) == pytest.approx((_clip(theirs.low), _clip(theirs.high)), rel=1e-6, abs=1e-6)


def test_exact_permutation_agrees_with_scipy() -> None:
    rng = np.random.default_rng(1)
    top, bottom = np.exp(rng.normal(0.4, 0.3, 6)), np.exp(rng.normal(0, 0.3, 5))

    def distance(x: np.ndarray, y: np.ndarray) -> float:
        return abs(float(np.mean(x) - np.mean(y)))

    theirs = stats.permutation_test(
        (np.log(top), np.log(bottom)), distance, alternative="greater", n_resamples=np.inf
    )
    assert permutation_p(list(top), list(bottom)) == pytest.approx(theirs.pvalue)


def test_sampled_permutation_is_the_same_each_time_close_to_t_and_never_zero() -> None:
    rng = np.random.default_rng(2)
    top, bottom = list(np.exp(rng.normal(0.03, 0.05, 12))), list(np.exp(rng.normal(0, 0.05, 12)))
    found = permutation_p(top, bottom)
    assert found == permutation_p(top, bottom)
    assert found == pytest.approx(stats.ttest_ind(np.log(top), np.log(bottom)).pvalue, abs=0.02)
    assert 0 < permutation_p([100.0 + i for i in range(12)], [1.0 + i / 100 for i in range(12)]) < 1e-4


@pytest.mark.parametrize(("n", "interval"), [(1, False), (2, False), (3, True), (4, True), (5, True)])
def test_what_is_claimed_depends_on_n(n: int, interval: bool) -> None:
    found = ratio([2.0 + i / 10 for i in range(n)], [1.0 + i / 10 for i in range(5)])
    assert (found.interval is not None) is interval
    assert (found.p_value is not None) is interval
    assert (found.t_p is not None) is interval
    assert (found.why_no_interval is None) is interval
    assert (found.why_no_p is None) is interval
    alone = estimate([2.0 + i / 10 for i in range(n)])
    assert alone.why_no_interval == (None if interval else f"n={n}: no interval")


@pytest.mark.parametrize(("n_top", "n_bottom"), [(3, 3), (4, 3), (3, 9), (5, 5), (6, 8)])
def test_p_by_t_is_that_of_welch_and_the_test_itself_where_labels_are_too_few(
    n_top: int, n_bottom: int
) -> None:
    rng = np.random.default_rng(n_top)
    top, bottom = np.exp(rng.normal(0.1, 0.1, n_top)).tolist(), np.exp(rng.normal(0, 0.05, n_bottom)).tolist()
    found = ratio(top, bottom)
    welch = stats.ttest_ind(np.log(top), np.log(bottom), equal_var=False).pvalue
    assert found.t_p == pytest.approx(welch)
    assert found.by_t().p_value == found.t_p
    if min(n_top, n_bottom) < 5:
        assert (found.p_value, found.least_p) == (found.t_p, 0.0)
    else:
        assert found.p_value == permutation_p(top, bottom)


@pytest.mark.parametrize(("n_top", "n_bottom"), [(5, 5), (5, 6), (6, 6), (12, 12)])
def test_no_permutation_has_a_smaller_p_than_the_least(n_top: int, n_bottom: int) -> None:
    apart = ratio([100.0 + i for i in range(n_top)], [1.0 + i / 100 for i in range(n_bottom)])
    assert apart.p_value == pytest.approx(apart.least_p)
    assert apart.p_value > 0


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(4)
    n_trials, hits, false_alarms = 2000, 0, 0
    for _ in range(n_trials):
        top, bottom = np.exp(rng.normal(math.log(1.3), 0.10, 4)), np.exp(rng.normal(0, 0.04, 3))
        found = ratio(list(top), list(bottom)).interval
        assert found is not None
        hits += found.contains(1.3)
        false_alarms += not found.contains(1.0)
    assert 0.935 <= hits / n_trials <= 0.98
    # It must also be able to say that there is a difference.
    assert false_alarms / n_trials > 0.8


@pytest.mark.parametrize(("n_top", "n_bottom"), [(5, 6), (12, 13), (12, 30)])
def test_splits_choose_every_repeat_as_often(n_top: int, n_bottom: int) -> None:
    for odd in range(n_top):
        # As far apart as observed is every split that has the odd one on the smaller side, as observed.
        top = [1.0] * n_top
        top[odd] = 2.0
        assert permutation_p(top, [1.0] * n_bottom) == pytest.approx(n_top / (n_top + n_bottom), abs=0.02)


def test_equal_repeats_give_a_point_and_not_an_error() -> None:
    found = ratio([2.0, 2.0, 2.0], [1.0, 1.0, 1.0])
    assert found.interval is not None
    assert found.interval.low == found.interval.high == pytest.approx(2.0)
    assert permutation_p([1.0] * 5, [1.0] * 5) == 1.0


@pytest.mark.parametrize("bad", [[], [0.0], [-1.0], [math.nan], [1.0, math.inf]])
def test_figures_that_have_no_logarithm_are_refused(bad: list[float]) -> None:
    with pytest.raises(StatisticsError, match="statistics: "):
        estimate(bad)
    with pytest.raises(StatisticsError, match="statistics: "):
        ratio([1.0], bad)


def _logs(interval: object) -> tuple[float, float]:
    low, high = interval.low, interval.high  # type: ignore[attr-defined]
    return (_clip(math.log(low) if low > 0 else -math.inf), _clip(math.log(high)))


def _clip(value: float) -> float:
    """Beyond the range of a float, an interval's end is 0 or infinite; how far beyond does not matter."""
    return max(-700.0, min(700.0, float(value)))
