"""Nights of years on a page: each of the newest, and before them medians of weeks and months."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np

from reports.history.noise import FloatArray, IntArray
from reports.history.store import Night, date_of

NIGHTLY_DAYS, WEEKLY_DAYS = 120, 400
"""Days before a night that are shown by nights, and by weeks; what lies before them, by months."""
_WEEK, _MONTH, _MID_WEEK, _MID_MONTH = 7, 31, 3, 14
_A_GAP = 1.6
"""Periods from one value to the next, from which on at least one has none."""
_UNIX_DAY = -date_of(0).toordinal() + date(1970, 1, 1).toordinal()
"""1970-01-01, from which numpy and charts count, as a day of the history."""


def unix_day(day: float) -> float:
    """A day of the history as charts count it; one without a fraction is a whole number."""
    return (int(day) if float(day).is_integer() else day) - _UNIX_DAY


@dataclass(frozen=True, slots=True, kw_only=True)
class NightPlace:
    """A night along the axis of days: nights of one date lie evenly within it, in their order."""

    day: float
    name: str


def night_places(nights: Iterable[Night]) -> Mapping[int, NightPlace]:
    """Id of a night → its place.

    Args:
        nights: the oldest first.
    """
    by_day: dict[int, list[Night]] = {}
    for night in nights:
        by_day.setdefault(night.day, []).append(night)
    return {
        night.id: NightPlace(day=day + number / len(of_day), name=night.name)
        for day, of_day in by_day.items()
        for number, night in enumerate(of_day)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinned:
    """Values of nights, or medians of longer periods.

    Attributes:
        days: [n], of each night, or in the middle of each period, counted as the history does. values: [n].
        names: [n], of the night, or the date of the middle.
        is_after_gap: [n], whether nothing was measured in the period before.
    """

    days: FloatArray | IntArray
    values: FloatArray
    names: tuple[str, ...]
    is_after_gap: tuple[bool, ...]


def by_night(places: Sequence[NightPlace], values: FloatArray, *, until: int) -> Thinned:
    """The newest nights, each by itself.

    Args:
        places: [n], one after the other.
    """
    new = [index for index, place in enumerate(places) if place.day >= until - NIGHTLY_DAYS + 1]
    days = np.array([places[index].day for index in new], dtype=np.float64)
    return Thinned(
        days=days,
        values=values[new],
        names=tuple(places[index].name for index in new),
        is_after_gap=_after_gaps(np.floor(days), np.ones(len(days))),
    )


def by_week_and_month(days: IntArray, values: FloatArray, *, until: int) -> Thinned:
    """All nights as medians of weeks from Monday on, and of months where they lie far back."""
    is_weekly = days > until - WEEKLY_DAYS
    # Days are counted from a Monday.
    weeks = days - days % _WEEK + _MID_WEEK
    dates = (days - _UNIX_DAY).astype("datetime64[D]")
    first_of_month = dates.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    months = first_of_month + _UNIX_DAY + _MID_MONTH
    middles = np.minimum(np.where(is_weekly, weeks, months), until)
    return _medians(middles, values, np.where(is_weekly, _WEEK, _MONTH))


def _medians(middles: IntArray, values: FloatArray, lengths: FloatArray | IntArray) -> Thinned:
    """Medians of values with a middle in common."""
    order = np.lexsort((values, middles))
    ordered = values[order]
    days, starts, counts = np.unique(middles[order], return_index=True, return_counts=True)
    medians = (ordered[starts + (counts - 1) // 2] + ordered[starts + counts // 2]) / 2
    return Thinned(
        days=days,
        values=medians,
        names=tuple(date_of(day).isoformat() for day in days.tolist()),
        is_after_gap=_after_gaps(days, lengths[order][starts]),
    )


def _after_gaps(days: FloatArray | IntArray, lengths: FloatArray | IntArray) -> tuple[bool, ...]:
    """Before which values at least one period has none.

    Args:
        days: [n], whole, one after the other. lengths: [n], of the periods, in days.
    """
    apart = np.diff(days)
    between = apart[apart > 0]
    # Who measures once a week has no gap between.
    usual = float(np.median(between)) if len(between) else 1.0
    periods = np.maximum(lengths[:-1], usual)
    return (*([False] * min(len(days), 1)), *(apart > _A_GAP * periods).tolist())
