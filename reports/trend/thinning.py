"""Nights of years on a page: each of the newest, and before them medians of weeks and months."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

import numpy as np

from reports.history.noise import FloatArray, IntArray
from reports.history.store import date_of

NIGHTLY_DAYS, WEEKLY_DAYS = 120, 400
"""Days before a night that are shown by nights, and by weeks; what lies before them, by months."""
_WEEK, _MONTH, _MID_WEEK, _MID_MONTH = 7, 31, 3, 14
_A_GAP = 1.6
"""Periods from one value to the next, from which on at least one has none."""
_UNIX_DAY = -date_of(0).toordinal() + date(1970, 1, 1).toordinal()
"""1970-01-01, from which numpy and charts count, as a day of the history."""


def unix_day(day: int) -> int:
    """A day of the history as charts count it."""
    return day - _UNIX_DAY


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinned:
    """Medians of periods.

    Attributes:
        days: [n], in the middle of each period, counted as the history does. values: [n].
        is_after_gap: [n], whether nothing was measured in the period before.
    """

    days: IntArray
    values: FloatArray
    is_after_gap: tuple[bool, ...]


def by_night(days: IntArray, values: FloatArray, *, until: int) -> Thinned:
    """The newest nights, one value a date."""
    is_new = days > until - NIGHTLY_DAYS
    return _medians(days[is_new], values[is_new], np.ones(int(is_new.sum())))


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
    apart = np.diff(days)
    # Who measures once a week has no gap between.
    usual = float(np.median(apart)) if len(apart) else 1.0
    periods = np.maximum(lengths[order][starts][:-1], usual)
    is_after_gap = np.concatenate([np.zeros(min(len(days), 1), dtype=bool), apart > _A_GAP * periods])
    return Thinned(days=days, values=medians, is_after_gap=tuple(is_after_gap.tolist()))
