"""Charts of a panel: its series by night, relative to the level of each, with their changes as events."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np

from reports.figures.specification import Axis, Event, Line, LineChart
from reports.history.noise import FloatArray
from reports.history.store import date_of
from reports.trend.panels import Panel, ShownSeries
from reports.trend.thinning import NIGHTLY_DAYS, Thinned, by_night, by_week_and_month, unix_day

_EDGE = 0.02
"""Share of values beyond either end of a chart, so that odd nights do not squeeze the others."""
_LEAST_REACH = 0.02
_DECIMALS = 4
_STEPS, _MOST_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 20.0, 100.0), 4
_MOST_TICKS = 8
_UNIX_DATE = date(1970, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelChart:
    """A chart of a panel and the values in it.

    Attributes:
        period: what a value is of, and what it is called in the table of numbers.
        values: of each series, relative to its level.
    """

    chart: LineChart
    period: str
    names: tuple[str, ...]
    values: tuple[Thinned, ...]


def newest_nights(panel: Panel, *, until: int) -> PanelChart | None:
    """The newest nights, each by itself; None where no series of the panel has any."""
    title = f"{panel.title}, the last {NIGHTLY_DAYS} nights, relative to the level of each series"
    low = max(until - NIGHTLY_DAYS + 1, min(int(each.past.days[0]) for each in panel.series))
    return _drawn(panel, title, "night", low, until, _newest)


def all_nights(panel: Panel, *, until: int) -> PanelChart | None:
    """All nights by weeks and months; None where the newest are all there are."""
    low = min(int(each.past.days[0]) for each in panel.series)
    if low > until - NIGHTLY_DAYS:
        return None
    title = f"{panel.title} since {date_of(low)} by week and month, relative to the level of each series"
    return _drawn(panel, title, "week or month", low, until, _all)


def _drawn(
    panel: Panel, label: str, period: str, low: int, until: int, thin: Callable[[ShownSeries, int], Thinned]
) -> PanelChart | None:
    thinned = [thin(each, until) for each in panel.series]
    values = np.concatenate([each.values for each in thinned])
    if not len(values):
        return None
    chart = LineChart(
        label=label,
        x=_dates(low, until),
        y=_relative_change(values),
        lines=tuple(
            Line(
                key=series.key,
                name=series.name,
                color=color,
                points=tuple((x, y) for x, y, _ in _points(each)),
                tips=_tips(series, each),
            )
            for color, (series, each) in enumerate(zip(panel.series, thinned, strict=True))
        ),
        events=_events(panel.series, low),
        low_height=True,
    )
    return PanelChart(
        chart=chart, period=period, names=tuple(each.name for each in panel.series), values=tuple(thinned)
    )


def _newest(shown: ShownSeries, until: int) -> Thinned:
    places = [shown.places[night] for night in shown.past.nights.tolist()]
    return by_night(places, _relative(shown), until=until)


def _all(shown: ShownSeries, until: int) -> Thinned:
    return by_week_and_month(shown.past.days, _relative(shown), until=until)


def _relative(shown: ShownSeries) -> FloatArray:
    return shown.past.values / shown.level - 1


def _points(thinned: Thinned) -> Iterator[tuple[float, float | None, str]]:
    """Place, value and name of each period, with a value of None for each gap."""
    for day, value, name, is_after_gap in zip(
        thinned.days.tolist(), thinned.values.tolist(), thinned.names, thinned.is_after_gap, strict=True
    ):
        if is_after_gap:
            yield unix_day(day) - 1, None, ""
        yield unix_day(day), round(value, _DECIMALS), name


def _tips(series: ShownSeries, thinned: Thinned) -> tuple[str, ...] | None:
    """Names of nights, where a date has several; dates alone are those of the axis."""
    if thinned.days.tolist() == np.unique(np.floor(thinned.days)).tolist():
        return None
    return tuple(
        f"{series.name}: {'no value' if value is None else f'{100 * value:+.1f} %'} at {name}"
        for _, value, name in _points(thinned)
    )


def _events(series: Sequence[ShownSeries], low: int) -> tuple[Event, ...]:
    """Changes that count, and the one that a verdict is about; one event a date and series."""
    events = {
        (place.day, place.name, each.key)
        for each in series
        for change in each.verdict.analysis.changes
        if change.state == "confirmed" or change == each.verdict.change
        for place in (each.places[int(each.verdict.series.nights[change.place])],)
    }
    return tuple(
        Event(x=float(unix_day(day)), text=f"since {name}", keys=(key,))
        for day, name, key in sorted(events)
        if day >= low
    )


def _dates(low: int, until: int) -> Axis:
    """First days of months or years."""
    first, last = date_of(low), date_of(until)
    n_months = 12 * (last.year - first.year) + last.month - first.month
    step = next((step for step in (1, 2, 3, 6) if n_months <= _MOST_TICKS * step), 12)
    months = (12 * first.year + first.month - 1 + k for k in range(1, n_months + 1))
    ticks = [date(month // 12, month % 12 + 1, 1) for month in months if month % 12 % step == 0]
    # A day more than the last night's, or its changes would lie in the frame.
    return Axis(
        name="",
        unit="date",
        low=float(unix_day(low)),
        high=float(unix_day(until) + 1),
        ticks=tuple(float((tick - _UNIX_DATE).days) for tick in ticks) or (float(unix_day(low)),),
    )


def _relative_change(values: FloatArray) -> Axis:
    """From where most values begin to where they end, in round steps."""
    low, high = np.quantile(values, [_EDGE, 1 - _EDGE])
    low, high = min(float(low), -_LEAST_REACH), max(float(high), _LEAST_REACH)
    room = 0.1 * (high - low)
    step = next((step for step in _STEPS if high - low <= _MOST_STEPS * step), _STEPS[-1])
    first, last = math.floor((low - room) / step), math.ceil((high + room) / step)
    return Axis(
        name="",
        unit="percent",
        low=first * step,
        high=last * step,
        ticks=tuple(k * step for k in range(first, last + 1)),
    )
