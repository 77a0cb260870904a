"""Charts of the trend page: panels of series, thinned to what a reader can see."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np

from harness.records.safe_text import spelt_out
from reports.charts.specification import Axis, Event, Line, LineChart
from reports.history.database import date_of
from reports.history.figures import METRICS, SECONDS, Metric, Subject
from reports.history.step_test import FloatArray, IntArray
from reports.history.store import Night, Series
from reports.history.verdicts import NightVerdict, SeriesVerdict, State
from reports.history.wording import METRIC_WORDS, figure_text, lasts, series_name
from reports.quantities import times

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
    """Flags of values that follow a period without one.

    Args:
        days: [n], whole, one after the other. lengths: [n], of the periods, in days.
    """
    apart = np.diff(days)
    between = apart[apart > 0]
    # Who measures once a week has no gap between.
    usual = float(np.median(between)) if len(between) else 1.0
    periods = np.maximum(lengths[:-1], usual)
    return (*([False] * min(len(days), 1)), *(apart > _A_GAP * periods).tolist())


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
        strategy = spelt_out(self.subject.strategy)
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

    def undrawn(self, drawn: Collection[tuple[str, str]]) -> list[str]:
        """Titles of quiet panels without a chart.

        Args:
            drawn: keys of panels, each with the period of a chart.
        """
        with_chart = {key for key, _ in drawn}
        return [panel.title for panel in self.quiet if panel.key not in with_chart]


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
        key = spelt_out(series_name(each))
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
    return spelt_out(workload), spelt_out(subject.shape)


def _panels(shown: Sequence[ShownSeries]) -> tuple[Panel, ...]:
    """One for each metric, in the order of the metrics."""
    by_metric: dict[tuple[int, str], list[ShownSeries]] = {}
    order = list(METRICS)
    for each in shown:
        by_metric.setdefault((order.index(each.metric.name), each.subject.against), []).append(each)
    return tuple(
        Panel(
            title=METRIC_WORDS[order[number]].title + (f" to {spelt_out(against)}" if against else ""),
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
