"""Confirmed changes last until the level is back or a month has passed."""

import numpy as np
import pytest

from reports.history import CONFIRM
from reports.history.change_points import Analysis, Change
from reports.history.lasting_changes import RECENT_DAYS, lasting

SIGMA = 0.03


class Analyses:
    """Analyses that confirm a step on some nights alone, as weak ones are found."""

    def __init__(self, *, place: int, effect: float, on: set[int]) -> None:
        self.place, self.effect, self.on = place, effect, on

    def __call__(self, n: int) -> Analysis:
        if n not in self.on:
            return Analysis(sigma=SIGMA)
        change = Change(
            place=self.place,
            night=self.place,
            effect=self.effect,
            gain=9.0,
            n_nights=n - self.place,
            confirmed_by=self.place + CONFIRM - 1,
            state="confirmed",
        )
        return Analysis(changes=(change,), sigma=SIGMA)


def stepped(n: int, *, place: int = 60, effect: float = 0.05, back: int | None = None) -> np.ndarray:
    logs = np.random.default_rng(0).normal(0, SIGMA, n)
    logs[place:back] += effect
    return logs


def test_a_change_that_later_nights_alone_do_not_find_stays_a_month_from_when_it_was_confirmed() -> None:
    analyses = Analyses(place=60, effect=0.05, on={70})
    logs = stepped(110)
    for n in range(70, 110):
        changes = lasting(analyses, np.arange(n), logs[:n]).analysis.changes
        recent = [change for change in changes if n - 1 - change.confirmed_by <= RECENT_DAYS]
        assert [(change.place, change.confirmed_by) for change in recent] == [(60, 69)] * (n <= 100)


@pytest.mark.parametrize(("effect", "most"), [(0.1, 14), (0.5, CONFIRM)])
def test_a_change_ends_when_the_level_is_back(effect: float, most: int) -> None:
    analyses = Analyses(place=60, effect=effect, on={65})
    logs = stepped(95, effect=effect, back=68)
    assert lasting(analyses, np.arange(68), logs[:68]).analysis.changes
    assert not lasting(analyses, np.arange(68 + most), logs[: 68 + most]).analysis.changes


def test_one_odd_night_is_no_level_that_is_back() -> None:
    logs = stepped(80, effect=0.5)
    logs[76] = 0.0
    analyses = Analyses(place=60, effect=0.5, on={65})
    assert all(lasting(analyses, np.arange(n), logs[:n]).analysis.changes for n in range(66, 80))


def test_runs_of_one_date_follow_each_other() -> None:
    analyses = Analyses(place=60, effect=0.5, on={65})
    assert lasting(analyses, np.zeros(80, dtype=np.int64), stepped(80, effect=0.5)).analysis.changes


def test_the_same_step_is_told_once_although_its_night_moves() -> None:
    logs = stepped(80, effect=0.2)

    def until(n: int) -> Analysis:
        return Analyses(place=60 + n % 3, effect=0.2, on={n})(n)

    (change,) = lasting(until, np.arange(80), logs).analysis.changes
    assert change.place == 60 + 80 % 3
