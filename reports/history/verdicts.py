"""Verdict of a night: the state of each series, and the likely causes of regressions."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
from scipy.special import stdtrit

from reports.history import CONFIRM, phrases
from reports.history.change_points import EARLY_NIGHTS, LEAST_NIGHTS, Analysis, Change, analyse
from reports.history.figures import BENCHMARKS, METRICS, RATE, RATIO, Lost, Metric, Subject
from reports.history.lasting_changes import RECENT_DAYS, decisive, lasting
from reports.history.phrases import State
from reports.history.step_test import FloatArray, IntArray, cleaned
from reports.history.store import History, Night, Series
from reports.statistics import Interval

ANALYSED_DAYS = 400
"""Days before a night that its verdict is based on."""
_MISSED_DAYS = 14
_TOGETHER_DAYS = 3
_MOST = 2 / 3
_NORMAL_95 = 1.96
_LEVEL_NIGHTS = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesVerdict:
    """State of a series in a night.

    Attributes:
        change: the change that decides the state, if any.
        since: first night of the change.
        before: last night before the change.
        reason: reason with which a known change was acknowledged.
        drift_since: first night of the drift, if any.
        drift_is_new: true if the drift is for the worse and exceeds the limit for the first time this month.
        has_figure: false without a figure tonight; a regression then stands, any other state is `missed`.
    """

    series: Series
    state: State
    analysis: Analysis
    change: Change | None = None
    since: Night | None = None
    before: Night | None = None
    reason: str = ""
    drift_since: Night | None = None
    drift_is_new: bool = False
    has_figure: bool = True

    @property
    def drift_factor(self) -> float | None:
        return None if self.analysis.drift is None else math.exp(self.analysis.drift.effect)

    @property
    def later(self) -> tuple[Change, ...]:
        """Confirmed changes after the one that decides the state."""
        if self.change is None:
            return ()
        return tuple(
            change
            for change in self.analysis.changes
            if change.state == "confirmed" and change.place > self.change.place
        )

    @property
    def factor(self) -> float | None:
        """Level now ÷ level before the change; later changes are included."""
        if self.change is None:
            return None
        return math.exp(self.change.effect + sum(change.effect for change in self.later))

    @property
    def first_factor(self) -> float | None:
        """Level right after the change ÷ level before it."""
        return None if self.change is None else math.exp(self.change.effect)

    @property
    def level(self) -> float:
        """Median of up to 90 nights before the change, or of the newest ones without a change."""
        confirmed = [change.place for change in self.analysis.changes if change.state == "confirmed"]
        end = len(self.series.values) if self.change is None else self.change.place
        begin = max((place for place in confirmed if place < end), default=0)
        return float(np.median(self.series.values[max(begin, end - _LEVEL_NIGHTS) : end]))

    @property
    def interval(self) -> Interval | None:
        """95 % interval of the factor, from the noise between nights; None without a change.

        half width = q · sigma · √(1 / n_now + 1 / n_before), q of the normal distribution; of Student's t for
        the few nights of a new series.
        """
        if self.change is None or self.factor is None:
            return None
        earlier = [change.place for change in self.analysis.changes if change.place < self.change.place]
        n_before = max(self.change.place - max(earlier, default=0), 1)
        is_new = len(self.series.days) < LEAST_NIGHTS
        quantile = float(stdtrit(n_before - 1, 0.975)) if is_new else _NORMAL_95
        n_now = min(change.n_nights for change in (self.change, *self.later))
        half = quantile * self.analysis.sigma * math.sqrt(1 / n_now + 1 / n_before)
        return Interval(low=self.factor * math.exp(-half), high=self.factor * math.exp(half))

    def changed_with(self, other: SeriesVerdict) -> bool:
        """Return True if both changed at about the same time."""
        changes = ((verdict.series.days, verdict.change) for verdict in (self, other))
        days = [int(days[change.place]) for days, change in changes if change is not None]
        return len(days) == 2 and abs(days[0] - days[1]) <= _TOGETHER_DAYS


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Likely cause of regressions that began together."""

    label: str
    members: tuple[SeriesVerdict, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NightVerdict:
    """States of all series in a night, cases without a figure, and causes of regressions."""

    night: Night
    series: tuple[SeriesVerdict, ...]
    lost: tuple[Lost, ...]
    causes: tuple[Cause, ...]

    @property
    def regressed(self) -> tuple[SeriesVerdict, ...]:
        return tuple(verdict for verdict in self.series if verdict.state == "regressed")

    @property
    def new_drifts(self) -> tuple[SeriesVerdict, ...]:
        """Series whose drift for the worse is reported tonight; each is reported once."""
        return tuple(verdict for verdict in self.series if verdict.drift_is_new)

    @property
    def wrong(self) -> tuple[Lost, ...]:
        """Cases that failed their check."""
        return tuple(case for case in self.lost if case.is_wrong)

    @property
    def has_failures(self) -> bool:
        """True if a case failed or is incorrect: its run ended with status 1."""
        return any(case.is_wrong or case.status == "failed" for case in self.lost)

    @property
    def counts(self) -> Mapping[str, int]:
        n_series = Counter(verdict.state for verdict in self.series)
        return {state: n_series[state] for state in get_args(State)}


def verdict_of(history: History, night: Night, *, confirm: int = CONFIRM) -> NightVerdict:
    """Judge a night by all nights up to it.

    Args:
        confirm: number of nights that a change must last before it counts.
    """
    nights = {night.id: night for night in history.nights()}
    known = history.known()
    all_series = history.series(until=night, n_days=ANALYSED_DAYS)
    expected = _expected_nights(all_series, night, nights)
    by_newest = tuple(
        _by_newest_figure(series, night, nights, known, confirm)
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
    """Subject → id of the night that must have its figure; otherwise the series is missed.

    That is the night itself. For benchmarks it is the newest night of the same test file and machine: each
    file of pytest-benchmark is a night, which has no figures of other test files.
    """
    if night.experiment != BENCHMARKS:
        return {series.subject: night.id for series in all_series}
    newest: dict[tuple[str, str], int] = {}
    for series in sorted(all_series, key=lambda series: nights[int(series.nights[-1])].moment):
        newest[_source(series.subject)] = int(series.nights[-1])
    return {series.subject: newest[_source(series.subject)] for series in all_series}


def _source(benchmark: Subject) -> tuple[str, str]:
    return benchmark.test_file, benchmark.shape


def _tonight(verdict: SeriesVerdict, night: Night, expected: int) -> SeriesVerdict | None:
    """State of a series in a night, with or without a figure of it; None if it ended long ago.

    Args:
        verdict: state by the newest figure.
        expected: id of the night that must have its figure.
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


def _by_newest_figure(
    series: Series,
    night: Night,
    nights: Mapping[int, Night],
    known: Mapping[str, tuple[int, str]],
    confirm: int,
) -> SeriesVerdict:
    """State of a series by its newest figure, which may be of an earlier night."""
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
    n_known, reason = _known_nights(series, nights, known)
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
        reason=reason if state == "known" else "",
    )


def _analysed(series: Series, metric: Metric, confirm: int) -> tuple[Analysis, bool]:
    """Analysis of a series up to its newest night; True beside it if its drift is new."""
    nights, weekdays, errors = (
        _distinct_days(series.days),
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
    result = lasting(until, series.days, cleaned(weekdays, series.values, errors).logs)
    return result.analysis, result.drift_is_new


def _known_nights(
    series: Series, nights: Mapping[int, Night], known: Mapping[str, tuple[int, str]]
) -> tuple[int, str]:
    """Number of nights whose changes are acknowledged, and the reason given."""
    acknowledged = [known[name] for name in names_of(series.subject) if name in known]
    if not acknowledged:
        return 0, ""
    last, reason = max(acknowledged, key=lambda item: nights[item[0]].moment)
    moment = nights[last].moment
    return bisect_right(series.nights.tolist(), moment, key=lambda night: nights[night].moment), reason


def _distinct_days(days: IntArray) -> IntArray:
    """Days made distinct: the second run of a date counts as the next day."""
    indices = np.arange(len(days))
    return np.asarray(np.maximum.accumulate(days - indices) + indices, dtype=np.int64)


def names_of(subject: Subject) -> tuple[str, ...]:
    """Names that `nightly ack` accepts for the case of a series."""
    return (subject.case, subject.strategy, f"{subject.workload} {subject.strategy}")


def _known_errors(errors: FloatArray) -> FloatArray | None:
    """Errors of all nights, missing ones replaced by the median; None if all are missing."""
    is_known = np.isfinite(errors)
    if not is_known.any():
        return None
    return np.where(is_known, errors, np.median(errors[is_known]))


def _causes(verdicts: Sequence[SeriesVerdict], by_newest: Sequence[SeriesVerdict]) -> Iterable[Cause]:
    """Group regressions that began together, with their likely cause.

    Args:
        by_newest: all series by their newest figures, including those without a figure tonight.
    """
    left = [verdict for verdict in verdicts if verdict.state == "regressed"]
    while left:
        together = [verdict for verdict in left if verdict.changed_with(left[0])]
        left = [verdict for verdict in left if verdict not in together]
        yield Cause(label=_cause_label(together, verdicts, by_newest), members=tuple(together))


def _cause_label(
    together: Sequence[SeriesVerdict], verdicts: Sequence[SeriesVerdict], by_newest: Sequence[SeriesVerdict]
) -> str:
    """Name what series that regressed together have in common."""
    judged = [verdict for verdict in verdicts if verdict.state not in ("missed", "new")]
    n_rates, n_slower = (len(_cases_with_rate(members)) for members in (judged, together))
    if n_slower > 1 and n_slower >= _MOST * n_rates:
        has_ratios = any(
            verdict.series.subject.metric == RATIO.name and verdict.changed_with(together[0])
            for verdict in by_newest
        )
        return phrases.ALL_CASES if has_ratios else phrases.MACHINE
    strategies = {verdict.series.subject.strategy for verdict in together}
    workloads = {verdict.series.subject.workload for verdict in together}
    if len(strategies) == 1:
        phrase = phrases.ONE_CASE if len(workloads) == 1 else phrases.ONE_STRATEGY
    else:
        phrase = phrases.ONE_WORKLOAD if len(workloads) == 1 else phrases.SEVERAL
    return phrase.format(
        strategy=min(strategies),
        workload=min(workloads),
        n_strategies=len(strategies),
        n_workloads=len(workloads),
    )


def _cases_with_rate(verdicts: Sequence[SeriesVerdict]) -> set[str]:
    subjects = [verdict.series.subject for verdict in verdicts]
    return {subject.case for subject in subjects if subject.metric == RATE.name}
