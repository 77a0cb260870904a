"""Thinned nights: which are kept, what medians are of, where a line has gaps."""

from datetime import date, timedelta

import numpy as np
import pytest

from reports.history.database import date_of, day_of
from reports.history.store import Night
from reports.history.trend_charts import (
    NIGHTLY_DAYS,
    WEEKLY_DAYS,
    NightPlace,
    by_night,
    by_week_and_month,
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
    days = range(NIGHTLY_DAYS + 5, -1, -1)
    values = np.arange(len(days), dtype=np.float64)
    thinned = by_night(places(*days), values, until=UNTIL)
    assert thinned.days.tolist() == ago(*days)[-NIGHTLY_DAYS:].tolist()
    assert thinned.values.tolist() == values[-NIGHTLY_DAYS:].tolist()
    assert not any(thinned.is_after_gap)


def test_each_night_of_a_date_has_a_place_of_its_own() -> None:
    values = [1.0, 9.0, 2.0, 4.0, 3.0]
    thinned = by_night(places(1, 0, 0, 0, 0), np.array(values), until=UNTIL)
    assert thinned.values.tolist() == values
    assert thinned.days.tolist() == [UNTIL - 1, UNTIL, UNTIL + 0.25, UNTIL + 0.5, UNTIL + 0.75]
    assert thinned.names == tuple(f"night {number}" for number in range(5))
    assert not any(thinned.is_after_gap)


def test_older_nights_are_medians_of_weeks_and_then_of_months() -> None:
    days = ago(*range(WEEKLY_DAYS + 200, -1, -1))
    values = days.astype(np.float64)
    thinned = by_week_and_month(days, values, until=UNTIL)
    first_weekly = UNTIL - WEEKLY_DAYS + 1
    weekly = [
        float(np.median([day for day in days.tolist() if day >= first_weekly and day // 7 == week]))
        for week in sorted({day // 7 for day in days.tolist() if day >= first_weekly})
    ]
    months = sorted({date_of(day).replace(day=1) for day in days.tolist() if day < first_weekly})
    monthly = [
        float(
            np.median([d for d in days.tolist() if d < first_weekly and date_of(d).replace(day=1) == month])
        )
        for month in months
    ]
    assert thinned.values.tolist() == [*monthly, *weekly]
    assert [date_of(day) for day in thinned.days[: len(months)]] == [
        month.replace(day=15) for month in months
    ]
    # Thursdays, but for a week that has not got that far.
    assert {day % 7 for day in thinned.days[len(months) : -1].tolist()} == {3}
    assert max(thinned.days) <= UNTIL
    assert not any(thinned.is_after_gap)


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
    thinned = by_night(places(*days), np.ones(len(days)), until=UNTIL)
    assert list(thinned.is_after_gap) == expected


def test_a_month_without_a_run_is_a_gap() -> None:
    lost = range(WEEKLY_DAYS + 60, WEEKLY_DAYS + 130)
    days = ago(*(day for day in range(WEEKLY_DAYS + 300, -1, -1) if day not in lost))
    thinned = by_week_and_month(days, np.ones(len(days)), until=UNTIL)
    assert sum(thinned.is_after_gap) == 1
    after = thinned.days[thinned.is_after_gap.index(True)]
    assert abs(after - (UNTIL - WEEKLY_DAYS - 60)) <= 31
