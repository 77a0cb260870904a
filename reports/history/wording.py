"""A night's verdict in words, and as a document."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.records.conditions import Repository
from harness.records.safe_text import printable
from reports.history.change_points import EARLY_NIGHTS, LEAST_NIGHTS
from reports.history.database import date_of
from reports.history.figures import (
    BENCHMARKS,
    BEYOND_BOUND,
    NOT_EQUIVALENT,
    SECONDS,
    Lost,
    Metric,
    Subject,
)
from reports.history.store import Night
from reports.history.verdicts import Cause, NightVerdict, SeriesVerdict
from reports.marks import WORDS
from reports.quantities import byte_count, digits, limits, plain, seconds, times

Commits = Callable[[SeriesVerdict], Sequence[str]]
"""Commits between the last night before a change and its first one, where these are known."""
_N_NAMED, _N_DETAILED = 4, 2
_SHORT = 10
_WRONG_WORDS = {NOT_EQUIVALENT: WORDS["not-equivalent"], BEYOND_BOUND: WORDS["beyond-bound"]}


STRATBENCH = "stratbench"
"""Name of our own repository beside those of users."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricWords:
    """Names of a metric: `title` over a chart and in a table, `noun` within a sentence."""

    title: str
    noun: str


METRIC_WORDS: Mapping[str, MetricWords] = {
    "ratio": MetricWords(title="Ratio of rates", noun="ratio of rates"),
    "rate": MetricWords(title="Examples per second", noun="examples per second"),
    "payload_bytes": MetricWords(title="Payload bytes of a step", noun="payload of a step"),
    "tcp_bytes": MetricWords(title="TCP bytes of a step", noun="TCP bytes of a step"),
    "peak_rss_bytes": MetricWords(title="Peak memory", noun="peak memory"),
    "seconds": MetricWords(title="Median time", noun="median time"),
}


def metric_name(subject: Subject) -> str:
    """Name of a subject's metric within a sentence."""
    # Of benchmarks, those of cases alone know a lock file, and their time is a step's.
    is_step = subject.metric == SECONDS.name and subject.lock_hash
    noun = "median step" if is_step else METRIC_WORDS[subject.metric].noun
    return f"{noun} to {subject.against}" if subject.against else noun


def figure_text(metric: Metric, value: float) -> str:
    """A value of a metric with its unit."""
    if metric.name.endswith("bytes"):
        return byte_count(value)
    shows: Mapping[str, Callable[[float], str]] = {"seconds": seconds, "ratio": times}
    return shows.get(metric.name, plain)(value)


def workload_commit(night: Night, workload: str) -> tuple[str, Repository] | None:
    """The reference of a workload, which may have parameters behind it, and the repository of its file."""
    fits = (item for item in night.workload_commits.items() if f"{workload}:".startswith(f"{item[0]}:"))
    return next(fits, None)


def code_of(night: Night) -> tuple[str, ...]:
    """The code that a night ran, a text for each repository: `stratbench 3c450fe704`."""
    name = "code" if night.experiment == BENCHMARKS else STRATBENCH
    own = Repository(name=name, git_sha=night.git_sha, git_dirty=night.git_dirty)
    return tuple(
        printable(
            f"{fromkey.name} {fromkey.git_sha[:_SHORT]}"
            f"{' with changes that were not committed' if fromkey.git_dirty else ''}"
        )
        for fromkey in dict.fromkeys((own, *night.workload_commits.values()))
        if fromkey.git_sha
    )


def verdict_line(verdict: NightVerdict) -> str:
    """The answer in a line."""
    counts = ", ".join(f"{count} {state}" for state, count in verdict.counts.items() if count)
    lost = f", {len(verdict.lost)} without a figure" if verdict.lost else ""
    worst = [*_named_wrong(verdict.wrong), *(_cause(cause) for cause in verdict.causes)]
    worst += _named_drifts(verdict.new_drifts)
    if verdict.series and all(each.state == "new" for each in verdict.series):
        worst.append(": ".join(too_early(verdict.series)))
    because = f" - {'; '.join(worst)}" if worst else ""
    return printable(f"{verdict.night.name}: {counts or 'no series'}{lost}{because}")


def _named_wrong(wrong: Sequence[Lost]) -> list[str]:
    named = [f"{x.strategy} on {x.workload} is {_WRONG_WORDS[x.status]}" for x in wrong[:_N_NAMED]]
    n_more = len(wrong) - len(named)
    return [*named, f"{n_more} more compute something else than they promise"] if n_more else named


def _named_drifts(drifts: Sequence[SeriesVerdict]) -> list[str]:
    named = [f"{series_name(drift)} drifts: {drifting_by(drift)}" for drift in drifts[:_N_NAMED]]
    n_more = len(drifts) - len(named)
    return [*named, f"{n_more} more drift"] if n_more else named


def too_early(young: Sequence[SeriesVerdict]) -> tuple[str, str]:
    """Two phrases on new series: why there is no verdict, and the night from which there is one.

    Args:
        young: one at least; the nights of the oldest count.
    """
    n_nights = max(len(each.series.days) for each in young)
    so_far = f"{n_nights} night{'' if n_nights == 1 else 's'} so far"
    if n_nights <= EARLY_NIGHTS:
        return "too early to tell", f"{so_far}; changes can be told from the {EARLY_NIGHTS + 1}th on"
    return "few nights", f"{so_far}; until the {LEAST_NIGHTS}th, only what is far from all before is told"


def further_lines(verdict: NightVerdict, commits: Commits) -> list[str]:
    """Lines below the verdict: wrong cases, regressions, pending changes, missing figures."""
    lines = [f"{x.status}: {place_name(x)}: {x.message}" for x in verdict.wrong]
    for each in verdict.regressed:
        lines.append(f"regressed: {place_name(each.series.subject)}: {moved(each)}")
        lines += [f"  {commit}" for commit in commits(each)]
    for state in ("pending", "improved"):
        lines += [
            f"{state}: {place_name(each.series.subject)}: {moved(each)}"
            for each in verdict.series
            if each.state == state and lasts(each)
        ]
    lines += [
        f"drifting: {series_name(each)}: {drifting_by(each)}"
        for each in verdict.series
        if each.state == "drifting"
    ]
    lines += [
        f"known: {place_name(each.series.subject)}: {moved(each)}: {each.why}"
        for each in verdict.series
        if each.state == "known"
    ]
    lines += [f"no figure: {place_name(x)}: {x.message}" for x in verdict.lost if not x.is_wrong]
    return [printable(line) for line in lines]


def document_of(verdict: NightVerdict, commits: Commits) -> dict[str, object]:
    """The verdict as mappings and scalars."""
    return {
        "night": verdict.night.name,
        "verdict": verdict_line(verdict),
        "code": list(code_of(verdict.night)),
        "series": dict(verdict.counts),
        "regressions": [
            {
                **_names(each.series.subject),
                "since": each.since.name if each.since else None,
                "ratio": each.factor,
                "interval": _interval(each),
                "commits": list(commits(each)),
            }
            for each in verdict.regressed
        ],
        "drifts": [
            {
                **_names(each.series.subject),
                "since": each.drift_since.name if each.drift_since else None,
                "ratio": each.drift_factor,
                "is_new": each.drift_is_new,
            }
            for each in verdict.series
            if each.state == "drifting"
        ],
        "causes": [
            {"what": cause.what, "cases": [member.series.subject.case for member in cause.members]}
            for cause in verdict.causes
        ],
        "lost": [
            {"case": each.case, "status": each.status, "message": each.message} for each in verdict.lost
        ],
    }


def _names(subject: Subject) -> dict[str, str]:
    return {name: getattr(subject, name) for name in ("case", "workload", "strategy", "metric")}


def lasts(verdict: SeriesVerdict) -> bool:
    """Return True if a change is worth a line: one odd night of a long series is not."""
    if verdict.change is None:
        return False
    return verdict.change.n_nights > 1 or len(verdict.series.days) < LEAST_NIGHTS


def _interval(verdict: SeriesVerdict) -> dict[str, float] | None:
    found = verdict.interval
    return None if found is None else {"low": found.low, "high": found.high}


def place_name(subject: Subject | Lost) -> str:
    """Strategy, workload and shape of a figure, or of a case without one."""
    return f"{subject.strategy} on {subject.workload} · {subject.shape}"


def series_name(verdict: SeriesVerdict) -> str:
    """Name of a series: its place and its metric."""
    subject = verdict.series.subject
    return f"{place_name(subject)}: {metric_name(subject)}"


def moved(verdict: SeriesVerdict) -> str:
    """Describe a change: its size, its first night, and its length."""
    change, since = verdict.change, verdict.since
    assert change is not None
    assert since is not None
    nights = f"{change.n_nights} night{'s' if change.n_nights != 1 else ''}"
    noise = f"nights differ by {digits(100 * verdict.analysis.sigma, significant=2)} %"
    missing = "" if verdict.has_figure else f"; last measured on {date_of(int(verdict.series.days[-1]))}"
    return f"{change_text(verdict)} since {since.name}, {nights}; {noise}{missing}"


def change_text(verdict: SeriesVerdict, *, is_brief: bool = False) -> str:
    """Describe the size of a change with its 95 % interval: `median step 1.22× (1.20–1.25)`.

    Where the level has changed again since, it ends with what it was at first: `; 1.30× at first)`.

    Args:
        is_brief: without what stands in parentheses.
    """
    factor, first = times(verdict.factor), times(verdict.first_factor)
    line = f"{metric_name(verdict.series.subject)} {factor}"
    if is_brief:
        return line
    at_first = "" if factor == first else f"; {first} at first"
    return f"{line} ({limits(verdict.interval)}{at_first})"


def drifting_by(verdict: SeriesVerdict) -> str:
    """Speed and size of a series' drift: `+3.6 % a week, 1.12× since 2026-10-01`."""
    drift, since = verdict.analysis.drift, verdict.drift_since
    assert drift is not None
    assert since is not None
    weekly = 100 * math.expm1(drift.slope * 7)
    return f"{weekly:+.1f} % a week, {times(verdict.drift_factor)} since {since.name}"


def _cause(cause: Cause) -> str:
    is_brief = len(cause.members) > _N_DETAILED
    changes = []
    for member in cause.members[:_N_NAMED]:
        subject = member.series.subject
        name = f"{subject.strategy} on {subject.workload}"
        of = "" if name == cause.what else f"{name} "
        changes.append(f"{of}{change_text(member, is_brief=is_brief)}")
    more = f" and {len(cause.members) - _N_NAMED} more" if len(cause.members) > _N_NAMED else ""
    first = cause.members[0].since
    return f"{cause.what}: {', '.join(changes)}{more} since {first.name if first else 'then'}"
