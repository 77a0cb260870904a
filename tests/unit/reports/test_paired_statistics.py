"""Paired ratios against SciPy's tests, which are slow to import and are the measure here."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from harness.records.comparison import PairedRatios, trimmed_mean
from reports.statistics import adjusted, paired_ratio, sign_flip_p

CORES = st.lists(st.integers(0, 2), min_size=4, max_size=12)
IN_TURN = CORES.filter(lambda cores: len(set(cores)) > 1 and min(Counter(cores).values()) > 1)
LOGS = st.lists(st.floats(-2, 2), min_size=3, max_size=12)


def pairs(logs: Iterable[float], cores: Sequence[int] | None = None) -> PairedRatios:
    """Repeats of two cases, the first of which was on the cores of these workers."""
    return PairedRatios(logs=tuple(logs), cores=None if cores is None else tuple((own, 0) for own in cores))


@given(LOGS.filter(lambda logs: np.std(logs) > 1e-3))
def test_interval_and_p_are_those_of_the_paired_t_test(logs: list[float]) -> None:
    test = scipy.stats.ttest_1samp(logs, 0.0)
    interval = test.confidence_interval(0.95)
    found = paired_ratio(pairs(logs))
    assert found.interval is not None
    assert math.log(found.interval.low) == pytest.approx(interval.low, abs=1e-9)
    assert math.log(found.interval.high) == pytest.approx(interval.high, abs=1e-9)
    assert found.t_p == pytest.approx(test.pvalue, abs=1e-9)
    if len(logs) < 8:
        assert found.least_p == 0.0
        assert found.p_value == pytest.approx(test.pvalue, abs=1e-9)


# Sums of these are exact: those that differ by rounding alone are one to us, and two to SciPy.
@given(st.lists(st.integers(-128, 128).map(lambda n: n / 64), min_size=8, max_size=10))
def test_p_of_signs_is_that_of_a_permutation_of_pairs(logs: list[float]) -> None:
    test = scipy.stats.permutation_test(
        (np.asarray(logs), np.zeros(len(logs))),
        lambda a, b: abs(np.mean(a) - np.mean(b)),
        permutation_type="samples",
        alternative="greater",
        n_resamples=np.inf,
    )
    assert sign_flip_p(logs) == pytest.approx(test.pvalue)
    assert paired_ratio(pairs(logs)).p_value == sign_flip_p(logs)


@pytest.mark.parametrize("n", [8, 10, 14, 30])
def test_no_choice_of_signs_has_a_smaller_p_than_the_least(n: int) -> None:
    found = paired_ratio(pairs(0.5 + i / 100 for i in range(n)))
    assert found.p_value == pytest.approx(found.least_p)
    assert found.by_t().p_value == found.t_p


def test_many_signs_are_drawn_and_p_is_never_zero() -> None:
    assert 0 < sign_flip_p([0.5] * 30) < 1e-3
    assert sign_flip_p([1.0, -1.0] * 15) == 1.0


@pytest.mark.parametrize("n", [1, 2])
def test_below_three_repeats_there_is_a_figure_and_nothing_more(n: int) -> None:
    found = paired_ratio(pairs([0.1] * n))
    assert found.value == pytest.approx(math.exp(0.1))
    assert (found.interval, found.p_value, found.least_effect) == (None, None, None)
    assert found.why_no_interval == f"n={n}: no interval"


def test_repeats_that_agree_to_the_digit_leave_no_doubt() -> None:
    assert paired_ratio(pairs([0.1] * 4)).p_value == 0.0
    assert paired_ratio(pairs([0.0] * 4)).p_value == 1.0


@given(IN_TURN, st.integers(0, 99))
def test_cores_of_different_speed_are_effects_of_a_linear_model(cores: list[int], seed: int) -> None:
    logs = np.random.default_rng(seed).normal(0.0, 0.1, size=len(cores)) + np.array(cores)
    known = sorted(set(cores))
    # Effects that sum to zero: what is estimated beside them is the mean over cores.
    effects = [[(core == k) - (core == known[-1]) for k in known[:-1]] for core in cores]
    model = np.column_stack([np.ones(len(cores)), np.array(effects, float)])
    solved, *_ = np.linalg.lstsq(model, logs, rcond=None)
    freedom = len(cores) - len(known)
    variance = float(np.sum((logs - model @ solved) ** 2)) / freedom
    half = scipy.stats.t.ppf(0.975, freedom) * math.sqrt(variance * np.linalg.inv(model.T @ model)[0, 0])
    found = paired_ratio(pairs(logs, cores))
    assert found.interval is not None
    assert math.log(found.value) == pytest.approx(solved[0])
    assert math.log(found.interval.high) - math.log(found.value) == pytest.approx(half)
    assert found.p_value == pytest.approx(
        2 * scipy.stats.t.sf(abs(solved[0]) / half * scipy.stats.t.ppf(0.975, freedom), freedom)
    )


@pytest.mark.parametrize("cores", [[0, 0, 1], [0, 1, 2, 3]])
def test_cores_with_one_turn_each_tell_no_spread_and_are_left_aside(cores: list[int]) -> None:
    logs = [0.1, 0.2, 0.4, 0.5][: len(cores)]
    assert paired_ratio(pairs(logs, cores)) == paired_ratio(pairs(logs))


def test_intervals_of_cores_in_turn_cover_what_they_promise_whatever_the_cores_differ_by() -> None:
    draw = np.random.default_rng(0)
    covered, widths = 0, []
    for _ in range(2000):
        logs = draw.normal(np.array([-0.1, 0.1, -0.1, 0.1]), 0.02)
        found = paired_ratio(pairs(logs, [0, 1, 0, 1]))
        assert found.interval is not None
        covered += found.interval.contains(1.0)
        widths.append(math.log(found.interval.high / found.interval.low))
    assert covered / 2000 == pytest.approx(0.95, abs=0.015)
    assert np.mean(widths) < 0.1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_adjustment_is_that_of_benjamini_and_hochberg(p_values: list[float]) -> None:
    expected = scipy.stats.false_discovery_control(p_values, method="bh")
    assert adjusted(p_values) == pytest.approx(list(expected))


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=30))
def test_the_mean_leaves_out_a_fifth_at_either_end(values: list[float]) -> None:
    assert trimmed_mean(values) == pytest.approx(scipy.stats.trim_mean(values, 0.2), abs=1e-9)


def test_a_true_difference_of_the_least_effect_is_found_four_times_in_five() -> None:
    rng = np.random.default_rng(0)
    found = paired_ratio(pairs(rng.normal(0.0, 0.1, size=5)))
    assert found.least_effect is not None
    error = math.log(found.least_effect) / (scipy.stats.t.ppf(0.975, 4) + scipy.stats.t.ppf(0.8, 4))
    draws = rng.normal(math.log(found.least_effect), error * math.sqrt(5), size=(4000, 5))
    p_values = scipy.stats.ttest_1samp(draws, 0.0, axis=1).pvalue
    assert np.mean(p_values < 0.05) == pytest.approx(0.8, abs=0.1)
