"""Charts of the trend page: series by workload and metric, with their newest nights."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from statistics import median

import numpy as np

from harness.records.safe_text import printable
from reports.charts.specification import Axis, Event, Line, LineChart
from reports.history import phrases
from reports.history.database import date_of
from reports.history.figures import METRICS, SECONDS, Metric, Subject
from reports.history.store import Night, Series
from reports.history.verdict_text import figure_text, lasts, metric_title, series_name
from reports.history.verdicts import NightVerdict, SeriesVerdict
from reports.quantities import times

SHOWN_DAYS = 120
"""Days before a night that charts show."""
_GAP = 1.6
"""Interval between two values, relative to the usual one, from which on a night is missing."""
_UNIX_DAY = -date_of(0).toordinal() + date(1970, 1, 1).toordinal()
"""1970-01-01 as a day of the history."""


def unix_day(day: float) -> float:
    """Days since 1970 of a day of the history; an int if it has no fraction."""
    return (int(day) if float(day).is_integer() else day) - _UNIX_DAY


@dataclass(frozen=True, slots=True, kw_only=True)
class NightPlace:
    """Place of a night on the axis of days; nights of one date are spread evenly over it."""

    day: float
    name: str


def night_places(nights: Iterable[Night]) -> Mapping[int, NightPlace]:
    """Place of each night, by its id.

    Args:
        nights: nights, oldest first.
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
class DrawnNight:
    """Night of a series in a chart; its value is None where nights are missing."""

    day: float
    name: str
    value: float | None


def newest_nights(places: Sequence[NightPlace], values: Sequence[float], *, until: int) -> list[DrawnNight]:
    """Newest nights of a series, with a night without a value in each gap.

    Args:
        places: [n], oldest night first.
        values: [n], values of the nights.
    """
    first = until - SHOWN_DAYS + 1
    new = [(p, value) for p, value in zip(places, values, strict=True) if p.day >= first]
    intervals = [math.floor(p.day) - math.floor(before.day) for (before, _), (p, _) in pairwise(new)]
    # A weekly series has no gaps between its weeks.
    usual = max(1.0, median([days for days in intervals if days > 0] or [1]))
    nights = []
    for (place, value), days in zip(new, [0, *intervals], strict=False):
        if days > _GAP * usual:
            nights.append(DrawnNight(day=place.day - 1, name="", value=None))
        nights.append(DrawnNight(day=place.day, name=place.name, value=value))
    return nights


MOST_LINES = 8
"""Most lines of a chart: as many as have distinct colours."""
_BENCHMARKS = "benchmarks"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSeries:
    """A series on the page.

    Attributes:
        past: all its nights, including those before the analysed ones.
        places: place of each night, by its id.
        key: unique name, by which readers filter.
    """

    verdict: SeriesVerdict
    past: Series
    places: Mapping[int, NightPlace]
    key: str

    @property
    def subject(self) -> Subject:
        return self.verdict.series.subject

    @property
    def metric(self) -> Metric:
        return METRICS[self.subject.metric]

    @property
    def is_changed(self) -> bool:
        """True if it has changed by more than a single outlier, or is new."""
        return self.verdict.state != "ok" and not self.is_outlier

    @property
    def is_outlier(self) -> bool:
        """True if only the newest night differs."""
        return self.verdict.change is not None and not lasts(self.verdict)

    @property
    def name(self) -> str:
        """Name of its line in a chart of its workload and metric."""
        strategy = printable(self.subject.strategy)
        if self.verdict.state == "missed":
            # The same case may continue with another lock file.
            return f"{strategy}, until {date_of(int(self.past.days[-1]))}"
        factor = self.verdict.factor
        return strategy if factor is None else f"{strategy}, {times(factor)}"

    def figure(self, value: float) -> str:
        """Value with the metric's unit."""
        return figure_text(self.metric, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Series of one workload and metric, the most urgent first.

    `n_left`: number of series beyond the lines of one chart.
    """

    title: str
    metric: Metric
    series: tuple[ShownSeries, ...]
    n_left: int

    @property
    def key(self) -> str:
        """Unique key: each series is in one panel."""
        return self.series[0].key


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Series of a workload and shape, or of a file of benchmarks.

    Attributes:
        changed: panels of changed and new series.
        unchanged: panels of all others, which are folded.
        n_unchanged: number of those others.
        n_outliers: number of those with a single outlier so far.
    """

    title: str
    shape: str
    changed: tuple[Panel, ...]
    unchanged: tuple[Panel, ...]
    n_unchanged: int
    n_outliers: int

    @property
    def n_changed(self) -> int:
        return sum(len(panel.series) + panel.n_left for panel in self.changed)

    def undrawn(self, drawn: Collection[str]) -> list[str]:
        """Titles of unchanged panels without a chart.

        Args:
            drawn: keys of panels with a chart.
        """
        return [panel.title for panel in self.unchanged if panel.key not in drawn]


def shown_series(
    verdict: NightVerdict, all_series: Iterable[Series], nights: Iterable[Night]
) -> tuple[ShownSeries, ...]:
    """Series of a night's verdict, the most urgent and largest changes first.

    Args:
        nights: nights of these series, oldest first.
    """
    places = night_places(nights)
    past = {series.subject: series for series in all_series}
    keys: set[str] = set()
    all_shown = []
    for series in verdict.series:
        subject, key = series.series.subject, printable(series_name(series))
        if key in keys:
            # The same case on another machine, or with another method or lock file.
            key = f"{key} ({subject.comparison_key} {subject.lock_hash[:12]})"
        keys.add(key)
        all_shown.append(ShownSeries(verdict=series, past=past[subject], places=places, key=key))
    return tuple(sorted(all_shown, key=_urgency))


def sections_of(all_shown: Sequence[ShownSeries]) -> tuple[Section, ...]:
    """Series by workload and shape, the sections with the most urgent changes first."""
    by_place: dict[tuple[str, str], list[ShownSeries]] = {}
    for series in all_shown:
        by_place.setdefault(_place(series.subject), []).append(series)
    return tuple(
        Section(
            title=title,
            shape=shape,
            changed=_panels([series for series in members if series.is_changed]),
            unchanged=_panels([series for series in members if not series.is_changed]),
            n_unchanged=sum(not series.is_changed for series in members),
            n_outliers=sum(series.is_outlier for series in members),
        )
        for (title, shape), members in by_place.items()
    )


def _urgency(series: ShownSeries) -> tuple[int, float, str]:
    factor = series.verdict.factor
    size = abs(math.log(factor)) if factor else 0.0
    return list(phrases.STATES).index(series.verdict.state), -size, series.key


def _place(subject: Subject) -> tuple[str, str]:
    """Workload and shape of a section; for benchmarks without a workload, their file."""
    is_file = subject.metric == SECONDS.name and subject.workload == _BENCHMARKS
    return printable(subject.test_file if is_file else subject.workload), printable(subject.shape)


def _panels(members: Sequence[ShownSeries]) -> tuple[Panel, ...]:
    """One panel per metric, in the order of the metrics."""
    order = list(METRICS)
    by_metric: dict[tuple[int, str], list[ShownSeries]] = {}
    for series in members:
        by_metric.setdefault((order.index(series.metric.name), series.subject.against), []).append(series)
    return tuple(
        Panel(
            title=printable(metric_title(order[number], against)),
            metric=METRICS[order[number]],
            series=tuple(of_metric[:MOST_LINES]),
            n_left=len(of_metric[MOST_LINES:]),
        )
        for (number, against), of_metric in sorted(by_metric.items(), key=lambda item: item[0])
    )


_EDGE = 0.02
"""Share of values beyond either end of a chart, so that outliers do not compress the others."""
_LEAST_REACH = 0.02
_DECIMALS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelChart:
    """Chart of a panel, and the nights of each series, with values relative to its level."""

    chart: LineChart
    names: tuple[str, ...]
    nights: tuple[list[DrawnNight], ...]


def panel_chart(panel: Panel, *, until: int) -> PanelChart | None:
    """Chart of a panel's newest nights; None if no series has any."""
    nights = tuple(_relative_nights(series, until) for series in panel.series)
    values = [night.value for of_series in nights for night in of_series if night.value is not None]
    if not values:
        return None
    low = max(until - SHOWN_DAYS + 1, min(int(series.past.days[0]) for series in panel.series))
    chart = LineChart(
        label=f"{panel.title}, the last {SHOWN_DAYS} days, relative to the level of each series",
        x=_dates(low, until),
        y=_relative_change(values),
        lines=tuple(
            Line(
                key=series.key,
                name=series.name,
                color=color,
                points=tuple(
                    (unix_day(night.day), None if night.value is None else round(night.value, _DECIMALS))
                    for night in of_series
                ),
                tips=_tips(series, of_series),
            )
            for color, (series, of_series) in enumerate(zip(panel.series, nights, strict=True))
        ),
        events=_events(panel.series, low),
        low_height=True,
    )
    return PanelChart(chart=chart, names=tuple(series.name for series in panel.series), nights=nights)


def _relative_nights(series: ShownSeries, until: int) -> list[DrawnNight]:
    places = [series.places[night] for night in series.past.nights.tolist()]
    values: list[float] = (series.past.values / series.verdict.level - 1).tolist()
    return newest_nights(places, values, until=until)


def _tips(series: ShownSeries, nights: Sequence[DrawnNight]) -> tuple[str, ...] | None:
    """Tips with names of nights if a date has several; otherwise None, as the axis shows dates."""
    if all(night.day == math.floor(night.day) for night in nights):
        return None
    values = ("no value" if night.value is None else f"{100 * night.value:+.1f} %" for night in nights)
    return tuple(
        f"{series.name}: {value} at {night.name}" for value, night in zip(values, nights, strict=True)
    )


def _events(all_shown: Sequence[ShownSeries], low: int) -> tuple[Event, ...]:
    """Confirmed changes, and the changes of verdicts; one event per date and series."""
    events = {
        (place.day, place.name, series.key)
        for series in all_shown
        for change in series.verdict.analysis.changes
        if change.state == "confirmed" or change == series.verdict.change
        for place in (series.places[int(series.verdict.series.nights[change.place])],)
    }
    return tuple(
        Event(x=float(unix_day(day)), text=f"since {name}", keys=(key,))
        for day, name, key in sorted(events)
        if day >= low
    )


def _dates(low: int, until: int) -> Axis:
    # One more day than the last night, or its changes would lie on the frame.
    first, last = int(unix_day(low)), int(unix_day(until)) + 1
    months = np.arange(np.datetime64(first, "D"), np.datetime64(last, "D")).astype("datetime64[M]")
    ticks = [day for day in np.unique(months).astype("datetime64[D]").astype(int).tolist() if day > first]
    return Axis(
        name="",
        unit="date",
        low=float(first),
        high=float(last),
        ticks=tuple(map(float, ticks or [first])),
    )


def _relative_change(values: Sequence[float]) -> Axis:
    low, high = np.quantile(values, [_EDGE, 1 - _EDGE])
    low, high = min(float(low), -_LEAST_REACH), max(float(high), _LEAST_REACH)
    room = 0.1 * (high - low)
    return Axis(
        name="",
        unit="percent",
        low=math.floor(100 * (low - room)) / 100,
        high=math.ceil(100 * (high + room)) / 100,
    )
