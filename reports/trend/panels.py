"""Panels of the trend page: series of a workload and a metric, those that have changed by themselves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.records.legible_text import spelt_out
from reports.history.figures import METRICS, SECONDS, Metric, Subject
from reports.history.store import Night, Series, date_of
from reports.history.verdicts import NightVerdict, SeriesVerdict, State
from reports.history.wording import METRIC_WORDS, figure_text, lasts, series_name
from reports.quantities import times
from reports.trend.thinning import NightPlace, night_places

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
        """What it is of."""
        return self.verdict.series.subject

    @property
    def metric(self) -> Metric:
        """What is measured."""
        return METRICS[self.subject.metric]

    @property
    def is_unfolded(self) -> bool:
        """Whether it is seen at once: there is something to say of it, or it is too young for that.

        One odd night is nothing to say.
        """
        return self.verdict.state != "ok" and not self.is_odd_night

    @property
    def is_odd_night(self) -> bool:
        """Whether it has changed in one night alone, which may be that night."""
        return self.verdict.change is not None and not lasts(self.verdict)

    @property
    def name(self) -> str:
        """Of its line in a chart of its workload and metric."""
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
        """Unlike that of every other: a series is in one panel alone."""
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
    """What a section is of: benchmarks that name no workload are of their file."""
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
