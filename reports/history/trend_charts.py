"""Charts of the trend page: panels of series, and the newest nights of each."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np

from harness.records.safe_text import printable
from reports.charts.specification import Axis, Event, Line, LineChart
from reports.history.database import date_of
from reports.history.figures import METRICS, SECONDS, Metric, Subject
from reports.history.step_test import FloatArray
from reports.history.store import Night, Series
from reports.history.verdicts import NightVerdict, SeriesVerdict, State
from reports.history.wording import METRIC_WORDS, figure_text, lasts, series_name
from reports.quantities import times

SHOWN_DAYS = 120
"""Days before a night that are drawn."""
_A_GAP = 1.6
"""Usual intervals from one value to the next, from which on at least one night has none."""
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
class DrawnNights:
    """The nights of a series that are drawn.

    Attributes:
        days: [n], counted as the history does. values: [n]. names: [n].
        is_after_gap: [n], whether nothing was measured where there usually is a night.
    """

    days: FloatArray
    values: FloatArray
    names: tuple[str, ...]
    is_after_gap: tuple[bool, ...]


def newest_nights(places: Sequence[NightPlace], values: FloatArray, *, until: int) -> DrawnNights:
    """The newest nights of a series.

    Args:
        places: [n], one after the other. values: [n].
    """
    new = [index for index, place in enumerate(places) if place.day >= until - SHOWN_DAYS + 1]
    days = np.array([places[index].day for index in new], dtype=np.float64)
    return DrawnNights(
        days=days,
        values=values[new],
        names=tuple(places[index].name for index in new),
        is_after_gap=_after_gaps(np.floor(days)),
    )


def _after_gaps(days: FloatArray) -> tuple[bool, ...]:
    intervals = np.diff(days)
    between = intervals[intervals > 0]
    # Who measures once a week has no gap between.
    usual = max(1.0, float(np.median(between))) if len(between) else 1.0
    return (*([False] * min(len(days), 1)), *(intervals > _A_GAP * usual).tolist())


MOST_LINES = 8
"""Lines that a reader can tell apart in one chart."""
_BENCHMARKS = "benchmarks"
_BY_URGENCY: Sequence[State] = (
    "regressed", "pending", "drifting", "improved", "known", "missed", "new", "ok",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSeries:
    """A series on the page.

    Attributes:
        past: all its nights, also those that the verdict does not look at.
        places: id of each night → its place along the axis of days.
        level: what it was before the change that its verdict is about, or what it is without one.
        key: unlike that of every other; what readers filter by.
    """

    verdict: SeriesVerdict
    past: Series
    places: Mapping[int, NightPlace]
    level: float
    key: str

    @property
    def subject(self) -> Subject:
        return self.verdict.series.subject

    @property
    def metric(self) -> Metric:
        return METRICS[self.subject.metric]

    @property
    def is_unfolded(self) -> bool:
        """True if it is seen at once: it has changed, or is too young to judge.

        One odd night is nothing to say.
        """
        return self.verdict.state != "ok" and not self.is_odd_night

    @property
    def is_odd_night(self) -> bool:
        """True if it has changed in one night alone, which may be an odd one."""
        return self.verdict.change is not None and not lasts(self.verdict)

    @property
    def name(self) -> str:
        """Name of its line in a chart of its workload and metric."""
        strategy = printable(self.subject.strategy)
        if self.verdict.state == "missed":
            # Of another lock file there may be one that goes on.
            return f"{strategy}, until {date_of(int(self.past.days[-1]))}"
        factor = self.verdict.factor
        return strategy if factor is None else f"{strategy}, {times(factor)}"

    def figure(self, value: float) -> str:
        """A value in the metric's unit."""
        return figure_text(self.metric, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Series of one workload and metric, the most urgent first.

    `n_left`: how many more there are than one chart has lines for.
    """

    title: str
    metric: Metric
    series: tuple[ShownSeries, ...]
    n_left: int

    @property
    def key(self) -> str:
        """Unique key: a series is in one panel alone."""
        return self.series[0].key


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A workload and shape, or a file of benchmarks.

    `changed`: of series in which something has happened, or that are new. `quiet`: of all others, which are
    folded away, `n_quiet` series, `n_odd` of them with one odd night so far.
    """

    title: str
    shape: str
    changed: tuple[Panel, ...]
    quiet: tuple[Panel, ...]
    n_quiet: int
    n_odd: int

    @property
    def n_changed(self) -> int:
        return sum(len(panel.series) + panel.n_left for panel in self.changed)

    def undrawn(self, drawn: Collection[str]) -> list[str]:
        """Titles of quiet panels without a chart.

        Args:
            drawn: keys of panels that have one.
        """
        return [panel.title for panel in self.quiet if panel.key not in drawn]


def shown_series(
    verdict: NightVerdict, all_series: Iterable[Series], nights: Iterable[Night]
) -> tuple[ShownSeries, ...]:
    """The series that a night has judged, the most urgent and largest changes first.

    Args:
        nights: of these series, the oldest first.
    """
    places = night_places(nights)
    past = {series.subject: series for series in all_series}
    keys: set[str] = set()
    shown = []
    for each in verdict.series:
        key = printable(series_name(each))
        if key in keys:
            # Another machine, method or lock file, of whose series two may be young at once.
            key = f"{key} ({each.series.subject.comparison_key} {each.series.subject.lock_hash[:12]})"
        keys.add(key)
        shown.append(
            ShownSeries(
                verdict=each, past=past[each.series.subject], places=places, level=each.level, key=key
            )
        )
    return tuple(sorted(shown, key=_urgency))


def sections_of(shown: Sequence[ShownSeries]) -> tuple[Section, ...]:
    """Series by what they are of, the places with the most urgent changes first."""
    places: dict[tuple[str, str], list[ShownSeries]] = {}
    for each in shown:
        places.setdefault(_place(each.subject), []).append(each)
    return tuple(
        Section(
            title=title,
            shape=shape,
            changed=_panels([each for each in of_place if each.is_unfolded]),
            quiet=_panels([each for each in of_place if not each.is_unfolded]),
            n_quiet=sum(not each.is_unfolded for each in of_place),
            n_odd=sum(each.is_odd_night for each in of_place),
        )
        for (title, shape), of_place in places.items()
    )


def _urgency(shown: ShownSeries) -> tuple[int, float, str]:
    factor = shown.verdict.factor
    return _BY_URGENCY.index(shown.verdict.state), -abs(math.log(factor)) if factor else 0.0, shown.key


def _place(subject: Subject) -> tuple[str, str]:
    """Workload and shape of a section; benchmarks without a workload have their file."""
    is_of_file = subject.metric == SECONDS.name and subject.workload == _BENCHMARKS
    workload = subject.test_file if is_of_file else subject.workload
    return printable(workload), printable(subject.shape)


def _panels(shown: Sequence[ShownSeries]) -> tuple[Panel, ...]:
    """One for each metric, in the order of the metrics."""
    by_metric: dict[tuple[int, str], list[ShownSeries]] = {}
    order = list(METRICS)
    for each in shown:
        by_metric.setdefault((order.index(each.metric.name), each.subject.against), []).append(each)
    return tuple(
        Panel(
            title=METRIC_WORDS[order[number]].title + (f" to {printable(against)}" if against else ""),
            metric=METRICS[order[number]],
            series=tuple(of_metric[:MOST_LINES]),
            n_left=len(of_metric[MOST_LINES:]),
        )
        for (number, against), of_metric in sorted(by_metric.items(), key=lambda item: item[0])
    )


_EDGE = 0.02
"""Share of values beyond either end of a chart, so that odd nights do not squeeze the others."""
_LEAST_REACH = 0.02
_DECIMALS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelChart:
    """A chart of a panel and the values in it.

    `nights` holds those of each series, with values relative to its level.
    """

    chart: LineChart
    names: tuple[str, ...]
    nights: tuple[DrawnNights, ...]


def panel_chart(panel: Panel, *, until: int) -> PanelChart | None:
    """Chart of a panel's newest nights; None where no series of the panel has any."""
    nights = tuple(_relative_nights(each, until) for each in panel.series)
    values = np.concatenate([night.values for night in nights])
    if not len(values):
        return None
    low = max(until - SHOWN_DAYS + 1, min(int(each.past.days[0]) for each in panel.series))
    chart = LineChart(
        label=f"{panel.title}, the last {SHOWN_DAYS} nights, relative to the level of each series",
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
            for color, (series, each) in enumerate(zip(panel.series, nights, strict=True))
        ),
        events=_events(panel.series, low),
        low_height=True,
    )
    return PanelChart(chart=chart, names=tuple(each.name for each in panel.series), nights=nights)


def _relative_nights(shown: ShownSeries, until: int) -> DrawnNights:
    places = [shown.places[night] for night in shown.past.nights.tolist()]
    return newest_nights(places, shown.past.values / shown.level - 1, until=until)


def _points(nights: DrawnNights) -> Iterator[tuple[float, float | None, str]]:
    """Place, value and name of each night, with a value of None for each gap."""
    for day, value, name, is_after_gap in zip(
        nights.days.tolist(), nights.values.tolist(), nights.names, nights.is_after_gap, strict=True
    ):
        if is_after_gap:
            yield unix_day(day) - 1, None, ""
        yield unix_day(day), round(value, _DECIMALS), name


def _tips(series: ShownSeries, nights: DrawnNights) -> tuple[str, ...] | None:
    """Names of nights, where a date has several; dates alone are those of the axis."""
    if nights.days.tolist() == np.unique(np.floor(nights.days)).tolist():
        return None
    return tuple(
        f"{series.name}: {'no value' if value is None else f'{100 * value:+.1f} %'} at {name}"
        for _, value, name in _points(nights)
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
    # A day more than the last night's, or its changes would lie in the frame.
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


def _relative_change(values: FloatArray) -> Axis:
    low, high = np.quantile(values, [_EDGE, 1 - _EDGE])
    low, high = min(float(low), -_LEAST_REACH), max(float(high), _LEAST_REACH)
    room = 0.1 * (high - low)
    return Axis(
        name="",
        unit="percent",
        low=math.floor(100 * (low - room)) / 100,
        high=math.ceil(100 * (high + room)) / 100,
    )
