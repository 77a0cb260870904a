"""Nights of a chart: those that are drawn, their places, and gaps of a line."""

from datetime import date, timedelta

import numpy as np
import pytest

from reports.history.database import date_of, day_of
from reports.history.store import Night
from reports.history.trend_charts import (
    SHOWN_DAYS,
    NightPlace,
    newest_nights,
    night_places,
    unix_day,
)

UNTIL = day_of("2026-11-26T02:00:00+00:00")


def ago(*days: int) -> np.ndarray:
    return np.array([UNTIL - day for day in days], dtype=np.int64)


def test_days_of_charts_are_counted_from_1970() -> None:
    assert date(1970, 1, 1) + timedelta(days=unix_day(UNTIL)) == date(2026, 11, 26) == date_of(UNTIL)


def places(*days: int) -> list[NightPlace]:
    """Places of nights that began so many days ago, the oldest first."""
    nights = [
        Night(
            id=number,
            name=f"night {number}",
            started_utc="",
            day=UNTIL - day,
            experiment="",
            run="",
            run_dir="",
            git_sha=None,
            git_dirty=None,
            workload_commits={},
        )
        for number, day in enumerate(days)
    ]
    return list(night_places(nights).values())


def test_the_newest_nights_stay_as_they_are_and_older_ones_are_left_out() -> None:
    days = range(SHOWN_DAYS + 5, -1, -1)
    values = [float(number) for number in range(len(days))]
    nights = newest_nights(places(*days), values, until=UNTIL)
    assert [night.day for night in nights] == ago(*days)[-SHOWN_DAYS:].tolist()
    assert [night.value for night in nights] == values[-SHOWN_DAYS:]


def test_each_night_of_a_date_has_a_place_of_its_own() -> None:
    values = [1.0, 9.0, 2.0, 4.0, 3.0]
    nights = newest_nights(places(1, 0, 0, 0, 0), values, until=UNTIL)
    assert [night.value for night in nights] == values
    assert [night.day for night in nights] == [UNTIL - 1, UNTIL, UNTIL + 0.25, UNTIL + 0.5, UNTIL + 0.75]
    assert [night.name for night in nights] == [f"night {number}" for number in range(5)]


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        ((5, 4, 3, 1, 0), [False, False, False, True, False]),
        ((28, 21, 14, 7, 0), [False] * 5),
        ((42, 35, 28, 7, 0), [False, False, False, True, False]),
        ((), []),
        ((0,), [False]),
        ((28, 28, 21, 14, 14, 0, 0), [False, False, False, False, False, True, False]),
    ],
    ids=["a night", "once a week", "weeks without", "nothing", "one night", "several of a date"],
)
def test_a_gap_is_a_night_without_a_run_where_there_usually_is_one(
    days: tuple[int, ...], expected: list[bool]
) -> None:
    nights = newest_nights(places(*days), [1.0] * len(days), until=UNTIL)
    with_value = [place for place, night in enumerate(nights) if night.value is not None]
    assert [place > 0 and nights[place - 1].value is None for place in with_value] == expected
