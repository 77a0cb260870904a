"""Steps and drift are found where they were put, and nowhere else."""

from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from nightly_series import Kind, Nightly, drawn

from reports.history import CONFIRM
from reports.history.change_points import EARLY_NIGHTS, LEAST_NIGHTS, Analysis, Change, analyse

LENGTHS = (90, 150, 365)
ASIDE = 3


def found_in(series: Nightly, **options: float) -> Analysis:
    return analyse(series.nights, series.values, series.errors, **options)  # type: ignore[arg-type]


def confirmed(analysis: Analysis) -> list[Change]:
    return [change for change in analysis.changes if change.state == "confirmed"]


def counts(many: Iterable[Nightly]) -> tuple[int, int, int]:
    """Steps that were found, those that were missed, and what was found where there is none."""
    n_found = n_missed = n_false = 0
    for series in many:
        left = [change.night for change in confirmed(found_in(series))]
        for night, _ in series.steps:
            near = [other for other in left if abs(other - night) <= ASIDE]
            n_found, n_missed = n_found + bool(near), n_missed + (not near)
            if near:
                left.remove(near[0])
        n_false += len(left)
    return n_found, n_missed, n_false


def many(kind: Kind, count: int, *, seed: int = 0, **options: float) -> list[Nightly]:
    return [
        drawn(kind, seed + k, n_nights=LENGTHS[k % len(LENGTHS)], **options)  # type: ignore[arg-type]
        for k in range(count)
    ]


def test_steps_of_5_percent_and_more_are_found_and_little_else() -> None:
    kinds: Sequence[Kind] = ("nothing", "step", "two steps", "drift")
    sums = np.sum([counts(many(kind, 100, seed=10_000)) for kind in kinds], axis=0)
    n_found, n_missed, n_false = map(int, sums)
    assert n_found / (n_found + n_missed) >= 0.9
    assert n_found / (n_found + n_false) >= 0.95


def test_the_smallest_step_is_mostly_found_after_a_dozen_nights() -> None:
    n_found, n_missed, _ = counts(many("step", 100, seed=20_000, size=0.05, n_after=12))
    assert n_found / (n_found + n_missed) >= 0.85


def test_drift_is_called_drift_and_hardly_ever_a_step() -> None:
    series = many("drift", 100, seed=30_000)
    assert sum(len(confirmed(found_in(series_of_run))) for series_of_run in series) <= 2
    drifting = [series_of_run for series_of_run in series if found_in(series_of_run).drift]
    assert len(drifting) >= 60


def test_what_has_not_changed_neither_steps_nor_drifts() -> None:
    analyses = [found_in(one_series) for one_series in many("nothing", 100, seed=40_000)]
    assert sum(len(confirmed(analysis)) for analysis in analyses) <= 1
    assert sum(bool(analysis.drift) for analysis in analyses) <= 1


def test_a_night_sooner_or_later_a_step_is_pending_and_then_confirmed() -> None:
    series = drawn("step", 3, n_nights=120, size=0.15, n_after=20, is_plain=True)
    (night, effect) = series.steps[0]
    states = []
    for n_after in (0, 1, 2, 3, 5, 8, 20):
        n = night + n_after
        analysis = analyse(series.nights[:n], series.values[:n], series.errors[:n])
        states.append(analysis.changes[-1].state if analysis.changes else "nothing")
    assert states == ["nothing", "pending", "pending", *["confirmed"] * 4]
    change = found_in(series).changes[-1]
    assert change.night == pytest.approx(night, abs=ASIDE)
    assert change.effect == pytest.approx(effect, abs=0.03)


def test_more_nights_are_waited_for_if_asked() -> None:
    series = drawn("step", 3, n_nights=120, size=0.2, n_after=8, is_plain=True)
    assert confirmed(found_in(series))
    assert [change.state for change in found_in(series, confirm=9).changes] == ["pending"]


def test_a_step_that_is_too_small_to_matter_is_none() -> None:
    series = drawn("step", 5, n_nights=200, size=0.05, n_after=60, noise=0.003, is_plain=True)
    assert confirmed(found_in(series))
    assert not confirmed(found_in(series, least_effect=0.1))


def test_a_figure_that_never_moves_is_followed_to_its_first_percent() -> None:
    """Payloads are the same every night, until they are not."""
    nights = np.arange(60, dtype=np.int64)
    values = np.where(nights < 50, 1e6, 1.012e6)
    (change,) = confirmed(analyse(nights, values, least_effect=0.01))
    assert change.night == 50
    assert not analyse(nights, np.full(60, 1e6)).changes


def test_odd_nights_alone_are_no_step() -> None:
    nights = np.arange(90, dtype=np.int64)
    rng = np.random.default_rng(1)
    values = np.exp(rng.normal(0, 0.02, 90))
    values[[20, 50, 51, 80]] *= 1.6
    assert not confirmed(analyse(nights, values))


def test_few_nights_tell_what_is_far_from_them() -> None:
    nights = np.arange(LEAST_NIGHTS - 1, dtype=np.int64)
    assert analyse(nights, np.ones(LEAST_NIGHTS - 1)) == Analysis()
    assert analyse(nights[:0], np.ones(0)) == Analysis()
    values = np.array([100.0, 101.0, 99.5, 60.0, 61.0])
    (change,) = analyse(nights[:5], values).changes
    assert (change.night, change.n_nights, change.state) == (3, 2, "pending")
    assert np.exp(change.effect) == pytest.approx(60.5 / 100.2, rel=0.003)
    assert not analyse(nights[:3], values[[0, 1, 3]]).changes
    assert not analyse(nights[:4], np.array([100.0, 90.0, 112.0, 75.0])).changes


@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize("factor", [1.15, 2.0, 20.0, 1 / 1.15, 0.05])
def test_a_step_is_confirmed_within_a_night_of_its_third_however_few_nights_are_before_it(
    factor: float, noise: float
) -> None:
    rng = np.random.default_rng(1)
    for n_before in range(EARLY_NIGHTS, 21):
        values = np.exp(rng.normal(0, noise, n_before + 4))
        values[n_before:] *= factor
        results = [
            confirmed(analyse(np.arange(n), values[:n])) for n in (n_before + CONFIRM, n_before + CONFIRM + 1)
        ]
        change = next(changes[-1] for changes in results if changes)
        assert change.place == n_before
        assert change.effect == pytest.approx(np.log(factor), abs=0.05)


def test_small_steps_of_few_nights_are_confirmed_of_figures_that_hardly_move() -> None:
    values = np.where(np.arange(6) < 3, 1e6, 1.05e6)
    assert confirmed(analyse(np.arange(6), values, least_effect=0.01, usual_noise=0.003))
    assert not confirmed(analyse(np.arange(6), values))


def test_a_young_step_waits_for_as_many_nights_as_asked() -> None:
    values = np.where(np.arange(10) < 5, 1.0, 2.0)
    assert [change.state for change in analyse(np.arange(9), values[:9], confirm=5).changes] == ["pending"]
    assert confirmed(analyse(np.arange(10), values, confirm=5))


def test_young_series_that_have_not_changed_are_not_confirmed() -> None:
    rng = np.random.default_rng(2)
    result = 0
    for noise in (0.01, 0.02, 0.03):
        for _ in range(150):
            values = np.exp(rng.normal(0, noise, 16))
            result += any(confirmed(analyse(np.arange(n), values[:n])) for n in (6, 8, 10, 12, 16))
    assert result == 0


@pytest.mark.parametrize(("outlier", "place"), [(11.98, 9), (8.5, 8)])
def test_an_outlier_between_two_levels_belongs_to_the_closer_one(outlier: float, place: int) -> None:
    logs = [12.85, 13.05, 13.08, 12.96, 13.07, 12.91, 12.76, 12.92, outlier, 7.09, 7.44, 7.81, 7.5]
    (change,) = confirmed(analyse(np.arange(len(logs)), np.exp(logs)))
    assert change.place == place


@pytest.mark.parametrize("slope", [0.003, 0.005, -0.005, 0.01])
def test_a_steep_drift_is_no_staircase_and_its_last_night_no_step(slope: float) -> None:
    rng = np.random.default_rng(3)
    for noise in (0.002, 0.01, 0.02):
        analysis = analyse(np.arange(80), np.exp(slope * np.arange(80) + rng.normal(0, noise, 80)))
        assert not analysis.changes
        assert analysis.drift is not None
        assert analysis.drift.effect == pytest.approx(79 * slope, rel=0.15)


def test_a_drift_is_reported_from_about_when_it_began() -> None:
    rng = np.random.default_rng(4)
    logs = 0.003 * np.maximum(np.arange(160) - 80, 0)
    drift = analyse(np.arange(160), np.exp(logs + rng.normal(0, 0.01, 160))).drift
    assert drift is not None
    assert drift.place == pytest.approx(80, abs=16)


def test_young_series_that_have_not_changed_are_hardly_ever_pending() -> None:
    rng = np.random.default_rng(0)
    nights = np.arange(10, dtype=np.int64)
    changes = [
        analyse(nights[:n], np.exp(rng.normal(0, 0.02, n))).changes for _ in range(300) for n in (4, 7, 10)
    ]
    assert sum(map(bool, changes)) <= 9


def test_the_same_nights_give_the_same_answer_in_any_unit() -> None:
    series = drawn("two steps", 7)
    one = found_in(series)
    other = analyse(series.nights, series.values * 1e6, series.errors)
    assert [(c.night, c.state) for c in one.changes] == [(c.night, c.state) for c in other.changes]
    assert [c.effect for c in one.changes] == pytest.approx([c.effect for c in other.changes])
