"""Verdict of a night: series that have got worse, or may have, and the likely cause."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from scipy.special import stdtrit

from reports.history.change_points import CONFIRM, EARLY_NIGHTS, LEAST_NIGHTS, Analysis, Change, analyse
from reports.history.figures import BENCHMARKS, METRICS, RATE, RATIO, Lost, Metric, Subject
from reports.history.lasting_changes import RECENT_DAYS, decisive, lasting
from reports.history.step_test import FloatArray, IntArray, cleaned
from reports.history.store import History, Night, Series
from reports.statistics import Interval

ANALYSED_DAYS = 400
"""Days before a night that are looked at for its verdict."""
_MISSED_DAYS = 14
_TOGETHER_DAYS = 3
_MOST = 2 / 3
_NORMAL_95 = 1.96
_LEVEL_NIGHTS = 90
State = Literal["ok", "pending", "regressed", "improved", "drifting", "new", "missed", "known"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesVerdict:
    """A series in a night.

    Attributes:
        change: the one that counts; None where there is none.
        since: the night that it began with, and the last one before it; None where there is no change.
        why: the reason of a known change.
        drift_since: the night that its drift began with; None where there is none.
        drift_is_new: whether the drift is for the worse and has come far, first this month.
        has_figure: the night has a figure of it; without one, a regression stands and all else is missed.
    """

    series: Series
    state: State
    analysis: Analysis
    change: Change | None = None
    since: Night | None = None
    before: Night | None = None
    why: str = ""
    drift_since: Night | None = None
    drift_is_new: bool = False
    has_figure: bool = True

    @property
    def drift_factor(self) -> float | None:
        return None if self.analysis.drift is None else math.exp(self.analysis.drift.effect)

    @property
    def later(self) -> tuple[Change, ...]:
        if self.change is None:
            return ()
        return tuple(
            change
            for change in self.analysis.changes
            if change.state == "confirmed" and change.place > self.change.place
        )

    @property
    def factor(self) -> float | None:
        """The level now over that before the change, with what later ones added or made up for."""
        if self.change is None:
            return None
        return math.exp(self.change.effect + sum(each.effect for each in self.later))

    @property
    def first_factor(self) -> float | None:
        return None if self.change is None else math.exp(self.change.effect)

    @property
    def level(self) -> float:
        """The median of up to 90 nights before the change, or of the newest ones."""
        confirmed = [change.place for change in self.analysis.changes if change.state == "confirmed"]
        end = len(self.series.values) if self.change is None else self.change.place
        begin = max((place for place in confirmed if place < end), default=0)
        return float(np.median(self.series.values[max(begin, end - _LEVEL_NIGHTS) : end]))

    @property
    def interval(self) -> Interval | None:
        """95 % interval of the factor, by how far nights lie apart by chance; None without a change.

        Of a young series' few nights, that is not known well.
        """
        if self.change is None or self.factor is None:
            return None
        earlier = [change.place for change in self.analysis.changes if change.place < self.change.place]
        n_before = max(self.change.place - max(earlier, default=0), 1)
        is_young = len(self.series.days) < LEAST_NIGHTS
        quantile = float(stdtrit(n_before - 1, 0.975)) if is_young else _NORMAL_95
        n_now = min(each.n_nights for each in (self.change, *self.later))
        half = quantile * self.analysis.sigma * math.sqrt(1 / n_now + 1 / n_before)
        return Interval(low=self.factor * math.exp(-half), high=self.factor * math.exp(half))

    def changed_with(self, other: SeriesVerdict) -> bool:
        """Return True if both have changed at about the same time."""
        changes = ((each.series.days, each.change) for each in (self, other))
        days = [int(days[change.place]) for days, change in changes if change is not None]
        return len(days) == 2 and abs(days[0] - days[1]) <= _TOGETHER_DAYS


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Likely cause of series that have got worse together."""

    what: str
    members: tuple[SeriesVerdict, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NightVerdict:
    """All that a night says."""

    night: Night
    series: tuple[SeriesVerdict, ...]
    lost: tuple[Lost, ...]
    causes: tuple[Cause, ...]

    @property
    def regressed(self) -> tuple[SeriesVerdict, ...]:
        return tuple(each for each in self.series if each.state == "regressed")

    @property
    def new_drifts(self) -> tuple[SeriesVerdict, ...]:
        """Series whose drift for the worse is reported tonight, once."""
        return tuple(each for each in self.series if each.drift_is_new)

    @property
    def wrong(self) -> tuple[Lost, ...]:
        return tuple(each for each in self.lost if each.is_wrong)

    @property
    def has_failures(self) -> bool:
        """True if a case failed or computes something else: a run with it ends with status 1."""
        return any(each.is_wrong or each.status == "failed" for each in self.lost)

    @property
    def counts(self) -> Mapping[str, int]:
        found = Counter(each.state for each in self.series)
        return {state: found[state] for state in get_args(State)}


def verdict_of(history: History, night: Night, *, confirm: int = CONFIRM) -> NightVerdict:
    """Judge a night by all nights up to it.

    Args:
        confirm: nights that a change must last before it counts as one.
    """
    nights = {night.id: night for night in history.nights()}
    known = history.known()
    all_series = history.series(until=night, n_days=ANALYSED_DAYS)
    expected = _expected_nights(all_series, night, nights)
    by_newest = tuple(
        _as_of_its_newest(series, night, nights, known, confirm)
        for series in all_series
        if night.day - int(series.days[-1]) <= RECENT_DAYS
    )
    tonight = (_tonight(verdict, night, expected[verdict.series.subject]) for verdict in by_newest)
    verdicts = tuple(verdict for verdict in tonight if verdict is not None)
    return NightVerdict(
        night=night,
        series=verdicts,
        lost=tuple(history.lost(night)),
        causes=tuple(_causes(verdicts, by_newest)),
    )


def _expected_nights(
    all_series: Sequence[Series], night: Night, nights: Mapping[int, Night]
) -> Mapping[Subject, int]:
    """Subject → id of the night that must have a figure of it, or the series is missed.

    That is the night itself. Of benchmarks it is the newest one with any of the same test file and machine:
    each file of pytest-benchmark becomes a night, and says nothing of tests that others ran.
    """
    if night.experiment != BENCHMARKS:
        return {series.subject: night.id for series in all_series}
    newest: dict[tuple[str, str], int] = {}
    for series in sorted(all_series, key=lambda each: nights[int(each.nights[-1])].moment):
        newest[_source(series.subject)] = int(series.nights[-1])
    return {series.subject: newest[_source(series.subject)] for series in all_series}


def _source(benchmark: Subject) -> tuple[str, str]:
    return benchmark.test_file, benchmark.shape


def _tonight(verdict: SeriesVerdict, night: Night, expected: int) -> SeriesVerdict | None:
    """A series in a night that may lack a figure of it; None where it has ended long ago.

    Args:
        verdict: by its newest figure.
        expected: id of the night that must have a figure of it.
    """
    series = verdict.series
    has_figure = int(series.nights[-1]) == expected
    n_days_ago = night.day - int(series.days[-1])
    if verdict.state == "regressed" or (has_figure and n_days_ago <= _MISSED_DAYS):
        return replace(verdict, has_figure=has_figure)
    if n_days_ago > _MISSED_DAYS:
        return None
    return SeriesVerdict(
        series=series,
        state="missed",
        analysis=verdict.analysis,
        drift_since=verdict.drift_since,
        has_figure=False,
    )


def _as_of_its_newest(
    series: Series,
    night: Night,
    nights: Mapping[int, Night],
    known: Mapping[str, tuple[int, str]],
    confirm: int,
) -> SeriesVerdict:
    """A series by its newest figure, which may be of a night before."""
    n = len(series.days)
    metric = METRICS[series.subject.metric]
    analysis, drift_is_new = _analysed(series, metric, confirm)
    drift = analysis.drift
    verdict = SeriesVerdict(
        series=series,
        state="ok" if drift is None else "drifting",
        analysis=analysis,
        drift_since=None if drift is None else nights[int(series.nights[drift.place])],
    )
    n_known, why = _known_nights(series, nights, known)
    newest = decisive(series, analysis, night, n_known, more_is_better=metric.more_is_better)
    if newest is None or (newest.state == "pending" and drift is not None):
        is_worse = drift is not None and (drift.effect > 0) != metric.more_is_better
        if n < LEAST_NIGHTS:
            return replace(verdict, state="new")
        return replace(verdict, drift_is_new=drift_is_new and is_worse and n_known < n)
    state: State
    if newest.state == "pending":
        state = "pending"
    elif (newest.effect > 0) == metric.more_is_better:
        state = "improved"
    else:
        state = "known" if newest.place < n_known else "regressed"
    return replace(
        verdict,
        state=state,
        change=newest,
        since=nights[int(series.nights[newest.place])],
        before=nights[int(series.nights[newest.place - 1])],
        why=why if state == "known" else "",
    )


def _analysed(series: Series, metric: Metric, confirm: int) -> tuple[Analysis, bool]:
    """A series as of its newest night, and whether its drift is new."""
    nights, weekdays, errors = (
        _one_after_the_other(series.days),
        series.days % 7,
        _known_errors(series.errors),
    )

    def until(n: int) -> Analysis:
        return analyse(
            nights[:n],
            series.values[:n],
            None if errors is None else errors[:n],
            weekdays=weekdays[:n],
            least_effect=metric.least_effect,
            usual_noise=metric.usual_noise,
            confirm=confirm,
        )

    if len(nights) <= EARLY_NIGHTS:
        return until(len(nights)), False
    found = lasting(until, series.days, cleaned(weekdays, series.values, errors).logs)
    return found.analysis, found.drift_is_new


def _known_nights(
    series: Series, nights: Mapping[int, Night], known: Mapping[str, tuple[int, str]]
) -> tuple[int, str]:
    """Count of nights up to the last one whose changes are known, and the reason."""
    acknowledged = [known[name] for name in names_of(series.subject) if name in known]
    if not acknowledged:
        return 0, ""
    last, why = max(acknowledged, key=lambda each: nights[each[0]].moment)
    moment = nights[last].moment
    return bisect_right(series.nights.tolist(), moment, key=lambda night: nights[night].moment), why


def _one_after_the_other(days: IntArray) -> IntArray:
    """Days, of which those of a second run of a date count as the next one."""
    indices = np.arange(len(days))
    return np.asarray(np.maximum.accumulate(days - indices) + indices, dtype=np.int64)


def names_of(subject: Subject) -> tuple[str, ...]:
    """Names by which a person may acknowledge a series' case."""
    return (subject.case, subject.strategy, f"{subject.workload} {subject.strategy}")


def _known_errors(errors: FloatArray) -> FloatArray | None:
    """Errors of all nights, where some have none the usual one; None where none has."""
    there = np.isfinite(errors)
    if not there.any():
        return None
    return np.where(there, errors, np.median(errors[there]))


def _causes(verdicts: Sequence[SeriesVerdict], by_newest: Sequence[SeriesVerdict]) -> Iterable[Cause]:
    """Regressions by what they have in common, those of a time together.

    Args:
        by_newest: all series by their newest figures, those without one tonight too.
    """
    left = [verdict for verdict in verdicts if verdict.state == "regressed"]
    while left:
        together = [each for each in left if each.changed_with(left[0])]
        left = [each for each in left if each not in together]
        yield Cause(what=_common(together, verdicts, by_newest), members=tuple(together))


def _common(
    together: Sequence[SeriesVerdict], verdicts: Sequence[SeriesVerdict], by_newest: Sequence[SeriesVerdict]
) -> str:
    """Name what series that got worse at one time have in common."""
    judged = [verdict for verdict in verdicts if verdict.state not in ("missed", "new")]
    rates = {each.series.subject.case for each in judged if each.series.subject.metric == RATE.name}
    slower = {each.series.subject.case for each in together if each.series.subject.metric == RATE.name}
    has_ratios = any(
        each.series.subject.metric == RATIO.name and each.changed_with(together[0]) for each in by_newest
    )
    if len(slower) > 1 and len(slower) >= _MOST * len(rates) and not has_ratios:
        return "the machine, or what all cases share: most rates have changed, and no ratio"
    if len(slower) > 1 and len(slower) >= _MOST * len(rates):
        return "what all cases share, or the machine"
    strategies = {each.series.subject.strategy for each in together}
    workloads = {each.series.subject.workload for each in together}
    if len(strategies) == 1 and len(workloads) > 1:
        return f"strategy {next(iter(strategies))}, on {len(workloads)} workloads"
    if len(workloads) == 1 and len(strategies) > 1:
        return f"workload {next(iter(workloads))}, with {len(strategies)} strategies"
    if len(strategies) == 1:
        return f"{next(iter(strategies))} on {next(iter(workloads))}"
    return f"{len(strategies)} strategies on {len(workloads)} workloads"
