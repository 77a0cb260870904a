"""Laws of ratios and intervals, and agreement with scipy's own tests."""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from synthetic_run import SINGLE, Case, write_run

import reports
from harness.records.checksums import with_checksum, without_checksum
from harness.records.comparison import PairedRatios, trimmed_mean
from reports.compare import build
from reports.load import load
from reports.pages.terminal import to_text
from reports.statistics import (
    StatisticsError,
    adjusted,
    estimate,
    paired_ratio,
    permutation_p,
    ratio,
    sign_flip_p,
)

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
    interval = estimate(values)
    assert interval.interval is not None
    assert interval.interval.low <= interval.value * (1 + 1e-12)
    assert interval.interval.high >= interval.value * (1 - 1e-12)


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
    p_value = permutation_p(top, bottom)
    assert p_value == permutation_p(top, bottom)
    assert p_value == pytest.approx(stats.ttest_ind(np.log(top), np.log(bottom)).pvalue, abs=0.02)
    assert 0 < permutation_p([100.0 + i for i in range(12)], [1.0 + i / 100 for i in range(12)]) < 1e-4


@pytest.mark.parametrize(("n", "interval"), [(1, False), (2, False), (3, True), (4, True), (5, True)])
def test_what_is_claimed_depends_on_n(n: int, interval: bool) -> None:
    result = ratio([2.0 + i / 10 for i in range(n)], [1.0 + i / 10 for i in range(5)])
    assert (result.interval is not None) is interval
    assert (result.p_value is not None) is interval
    assert (result.t_p is not None) is interval
    assert (result.why_no_interval is None) is interval
    assert (result.why_no_p is None) is interval
    alone = estimate([2.0 + i / 10 for i in range(n)])
    assert alone.why_no_interval == (None if interval else f"n = {n}: no interval")


@pytest.mark.parametrize(("n_top", "n_bottom"), [(3, 3), (4, 3), (3, 9), (5, 5), (6, 8)])
def test_p_by_t_is_that_of_welch_and_the_test_itself_where_labels_are_too_few(
    n_top: int, n_bottom: int
) -> None:
    rng = np.random.default_rng(n_top)
    top, bottom = np.exp(rng.normal(0.1, 0.1, n_top)).tolist(), np.exp(rng.normal(0, 0.05, n_bottom)).tolist()
    estimate = ratio(top, bottom)
    welch = stats.ttest_ind(np.log(top), np.log(bottom), equal_var=False).pvalue
    assert estimate.t_p == pytest.approx(welch)
    assert estimate.by_t().p_value == estimate.t_p
    if min(n_top, n_bottom) < 5:
        assert (estimate.p_value, estimate.least_p) == (estimate.t_p, 0.0)
    else:
        assert estimate.p_value == permutation_p(top, bottom)


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
        interval = ratio(list(top), list(bottom)).interval
        assert interval is not None
        hits += interval.contains(1.3)
        false_alarms += not interval.contains(1.0)
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
    estimate = ratio([2.0, 2.0, 2.0], [1.0, 1.0, 1.0])
    assert estimate.interval is not None
    assert estimate.interval.low == estimate.interval.high == pytest.approx(2.0)
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
    estimate = paired_ratio(pairs(logs))
    assert estimate.interval is not None
    assert math.log(estimate.interval.low) == pytest.approx(interval.low, abs=1e-9)
    assert math.log(estimate.interval.high) == pytest.approx(interval.high, abs=1e-9)
    assert estimate.t_p == pytest.approx(test.pvalue, abs=1e-9)
    if len(logs) < 8:
        assert estimate.least_p == 0.0
        assert estimate.p_value == pytest.approx(test.pvalue, abs=1e-9)


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
    estimate = paired_ratio(pairs(0.5 + i / 100 for i in range(n)))
    assert estimate.p_value == pytest.approx(estimate.least_p)
    assert estimate.by_t().p_value == estimate.t_p


def test_many_signs_are_drawn_and_p_is_never_zero() -> None:
    assert 0 < sign_flip_p([0.5] * 30) < 1e-3
    assert sign_flip_p([1.0, -1.0] * 15) == 1.0


@pytest.mark.parametrize("n", [1, 2])
def test_below_three_repeats_there_is_a_figure_and_nothing_more(n: int) -> None:
    estimate = paired_ratio(pairs([0.1] * n))
    assert estimate.value == pytest.approx(math.exp(0.1))
    assert (estimate.interval, estimate.p_value, estimate.least_effect) == (None, None, None)
    assert estimate.why_no_interval == f"n = {n}: no interval"


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
    estimate = paired_ratio(pairs(logs, cores))
    assert estimate.interval is not None
    assert math.log(estimate.value) == pytest.approx(solved[0])
    assert math.log(estimate.interval.high) - math.log(estimate.value) == pytest.approx(half)
    assert estimate.p_value == pytest.approx(
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
        estimate = paired_ratio(pairs(logs, [0, 1, 0, 1]))
        assert estimate.interval is not None
        covered += estimate.interval.contains(1.0)
        widths.append(math.log(estimate.interval.high / estimate.interval.low))
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
    estimate = paired_ratio(pairs(rng.normal(0.0, 0.1, size=5)))
    assert estimate.least_effect is not None
    error = math.log(estimate.least_effect) / (scipy.stats.t.ppf(0.975, 4) + scipy.stats.t.ppf(0.8, 4))
    draws = rng.normal(math.log(estimate.least_effect), error * math.sqrt(5), size=(4000, 5))
    p_values = scipy.stats.ttest_1samp(draws, 0.0, axis=1).pvalue
    assert np.mean(p_values < 0.05) == pytest.approx(0.8, abs=0.1)


@pytest.fixture(scope="module")
def wild(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cases = [Case(workload="w", **SINGLE), Case(workload="w", strategy="ps")]
    path = write_run(tmp_path_factory.mktemp("wild") / "run", cases)
    results = path / "results.jsonl"
    lines = [without_checksum(json.loads(line)) for line in results.read_text().splitlines()]
    for line in lines:
        assert isinstance(line["step_s"], dict)
        line["step_s"]["p50"] = {0: 1e-250, 1: 1.0, 2: 1e250}[line["repeat"]]  # type: ignore[index]
    results.write_text("".join(json.dumps(with_checksum(line)) + "\n" for line in lines))
    return path


def test_json_has_null_for_it(wild: Path) -> None:
    text = reports.render([wild], "json")
    assert "Infinity" not in text
    assert "NaN" not in text
    rows = json.loads(text)["comparisons"][0]["rows"]
    assert any(row["rate"]["interval"] and row["rate"]["interval"]["high"] is None for row in rows)


def test_csv_is_numbers_or_nothing(wild: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(reports.render([wild], "csv"))))
    assert rows
    cells = {cell for row in rows for cell in row.values()}
    assert not {"inf", "-inf", "nan"} & cells
    assert any(row["examples_per_s_low"] and not row["examples_per_s_high"] for row in rows)


def test_people_read_a_sign(wild: Path) -> None:
    text = reports.render([wild], "md")
    assert "–∞" in text
    for word in ("inf ", " nan", "NaN"):
        assert word not in text
    output = to_text(build([load(wild)]), folder="run").split()
    assert not [word for word in output if "inf" in word or "nan" in word]


def test_junit_can_be_read(wild: Path) -> None:
    text = reports.render([wild], "junit")
    cases = ET.fromstring(text).iter("testcase")
    assert all(float(case.attrib["time"]) >= 0 for case in cases)
    assert "nan" not in text
