"""A night's verdict as text and as a document, in the phrases of `reports.history.phrases`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from harness.records.conditions import Repository, short_hash
from harness.records.safe_text import printable
from reports.history import phrases
from reports.history.change_points import EARLY_NIGHTS, LEAST_NIGHTS
from reports.history.database import date_of
from reports.history.figures import BENCHMARKS, BEYOND_BOUND, NOT_EQUIVALENT, SECONDS, Lost, Metric, Subject
from reports.history.store import Night
from reports.history.verdicts import Cause, NightVerdict, SeriesVerdict
from reports.marks import WORDS
from reports.quantities import byte_count, limits, plain, seconds, times

Commits = Callable[[SeriesVerdict], Sequence[str]]
"""Commits between the last night before a change and its first one, if they are known."""
STRATBENCH = "stratbench"
"""Name of our own repository beside those of users."""
_N_NAMED, _N_DETAILED = 4, 2
_FAILED_CHECKS = {NOT_EQUIVALENT: WORDS["not-equivalent"], BEYOND_BOUND: WORDS["beyond-bound"]}


def metric_title(metric: str, against: str) -> str:
    """Name of a metric over a chart, with the baseline of a ratio."""
    name = f"{phrases.METRICS[metric]} to {against}" if against else phrases.METRICS[metric]
    return f"{name[0].upper()}{name[1:]}"


def metric_name(subject: Subject) -> str:
    """Name of a subject's metric in a sentence."""
    # Benchmarks of cases have a lock hash, and their time is a step's.
    is_step = subject.metric == SECONDS.name and subject.lock_hash
    noun = "median step" if is_step else phrases.METRICS[subject.metric]
    return f"{noun} to {subject.against}" if subject.against else noun


def figure_text(metric: Metric, value: float) -> str:
    """Value of a metric with its unit."""
    if metric.name.endswith("bytes"):
        return byte_count(value)
    shows: Mapping[str, Callable[[float], str]] = {"seconds": seconds, "ratio": times}
    return shows.get(metric.name, plain)(value)


def workload_commit(night: Night, workload: str) -> tuple[str, Repository] | None:
    """Reference of a workload, which may have parameters behind it, and the repository of its file."""
    matches = (item for item in night.workload_commits.items() if f"{workload}:".startswith(f"{item[0]}:"))
    return next(matches, None)


def code_of(night: Night) -> tuple[str, ...]:
    """Code that a night ran, a text for each repository: `stratbench 3c450fe704`."""
    name = "code" if night.experiment == BENCHMARKS else STRATBENCH
    own = Repository(name=name, git_sha=night.git_sha, git_dirty=night.git_dirty)
    return tuple(
        printable(
            (phrases.UNCOMMITTED if repository.git_dirty else phrases.CODE).format(
                name=repository.name, commit=short_hash(repository.git_sha)
            )
        )
        for repository in dict.fromkeys((own, *night.workload_commits.values()))
        if repository.git_sha
    )


def since_text(verdict: SeriesVerdict) -> str:
    """First night of a change, with new code: `2026-10-01, first with stratbench 3c450fe704`."""
    before, since = verdict.before, verdict.since
    assert before is not None
    assert since is not None
    new_code = [code for code in code_of(since) if code not in code_of(before)]
    return phrases.SINCE_COMMIT.format(night=since.name, code=", ".join(new_code)) if new_code else since.name


def counts_text(verdict: NightVerdict) -> str:
    """Number of series in each state, the most urgent first, and of cases without a figure."""
    counts = [f"{verdict.counts[state]} {state}" for state in phrases.STATES if verdict.counts[state]]
    lost = [phrases.WITHOUT_FIGURE.format(n=len(verdict.lost))] if verdict.lost else []
    return ", ".join((*(counts or [phrases.NO_SERIES]), *lost))


def verdict_line(verdict: NightVerdict) -> str:
    """Verdict of a night in one line: counts by state, then causes."""
    causes = [
        *_named(
            phrases.FAILED_CHECK.format(
                place=f"{case.strategy} on {case.workload}", mark=_FAILED_CHECKS[case.status]
            )
            for case in verdict.wrong
        ),
        *map(_cause, verdict.causes),
        *_named(
            phrases.DRIFTS.format(series=series_name(s), drift=drift_text(s)) for s in verdict.new_drifts
        ),
    ]
    if verdict.series and all(series.state == "new" for series in verdict.series):
        causes.append(": ".join(too_early(verdict.series)))
    phrase = phrases.VERDICT_WITH_CAUSES if causes else phrases.VERDICT
    text = phrase.format(night=verdict.night.name, counts=counts_text(verdict), causes="; ".join(causes))
    return printable(text)


def _named(texts: Iterable[str]) -> list[str]:
    """The first texts, and the number of the others."""
    named = list(texts)
    return (
        named if len(named) <= _N_NAMED else [*named[:_N_NAMED], phrases.MORE.format(n=len(named) - _N_NAMED)]
    )


def _cause(cause: Cause) -> str:
    is_brief = len(cause.members) > _N_DETAILED
    changes = []
    for member in cause.members:
        subject = member.series.subject
        name = f"{subject.strategy} on {subject.workload}"
        prefix = "" if name == cause.label else f"{name} "
        changes.append(f"{prefix}{change_text(member, is_brief=is_brief)}")
    return phrases.CAUSE.format(
        cause=cause.label, changes=", ".join(_named(changes)), since=since_text(cause.members[0])
    )


def too_early(new: Sequence[SeriesVerdict]) -> tuple[str, str]:
    """Reason why new series have no verdict, and the night from which they have one.

    Args:
        new: new series, at least one; the nights of the oldest one count.
    """
    n_nights = max(len(verdict.series.days) for verdict in new)
    nights = f"{n_nights} night{'' if n_nights == 1 else 's'}"
    if n_nights <= EARLY_NIGHTS:
        return phrases.TOO_EARLY, phrases.FROM_NIGHT.format(nights=nights)
    return phrases.FEW_NIGHTS, phrases.OUTLIERS_ONLY.format(nights=nights)


def further_lines(verdict: NightVerdict, commits: Commits) -> list[str]:
    """Lines below the verdict, the most urgent first."""
    return list(map(printable, _further_lines(verdict, commits)))


def _further_lines(verdict: NightVerdict, commits: Commits) -> Iterator[str]:
    yield from (f"{case.status}: {place_name(case)}: {case.message}" for case in verdict.wrong)
    for cause in verdict.causes:
        yield from (f"regressed: {': '.join(statement(member))}" for member in cause.members)
        yield from (f"  {commit}" for commit in commits_of(cause, commits))
    for state in ("pending", "improved", "drifting", "known"):
        for series in verdict.series:
            if series.state == state and (state not in ("pending", "improved") or lasts(series)):
                yield f"{state}: {': '.join(statement(series))}"
    yield from (f"no figure: {place_name(c)}: {c.message}" for c in verdict.lost if not c.is_wrong)


def commits_of(cause: Cause, commits: Commits) -> list[str]:
    """Commits before the first night of a cause, each once."""
    return list(dict.fromkeys(commit for member in cause.members for commit in commits(member)))


def document_of(verdict: NightVerdict, commits: Commits) -> dict[str, object]:
    """The verdict as mappings and scalars."""
    return {
        "night": verdict.night.name,
        "verdict": verdict_line(verdict),
        "code": list(code_of(verdict.night)),
        "series": dict(verdict.counts),
        "regressions": [
            {
                **_names(series.series.subject),
                "since": series.since.name if series.since else None,
                "ratio": series.factor,
                "interval": {"low": interval.low, "high": interval.high}
                if (interval := series.interval)
                else None,
                "commits": list(commits(series)),
            }
            for series in verdict.regressed
        ],
        "drifts": [
            {
                **_names(series.series.subject),
                "since": series.drift_since.name if series.drift_since else None,
                "ratio": series.drift_factor,
                "is_new": series.drift_is_new,
            }
            for series in verdict.series
            if series.state == "drifting"
        ],
        "causes": [
            {"what": cause.label, "cases": [member.series.subject.case for member in cause.members]}
            for cause in verdict.causes
        ],
        "lost": [
            {"case": case.case, "status": case.status, "message": case.message} for case in verdict.lost
        ],
    }


def _names(subject: Subject) -> dict[str, str]:
    return {name: getattr(subject, name) for name in ("case", "workload", "strategy", "metric")}


def lasts(verdict: SeriesVerdict) -> bool:
    """Return True unless a change is a single outlier of a long series."""
    if verdict.change is None:
        return False
    return verdict.change.n_nights > 1 or len(verdict.series.days) < LEAST_NIGHTS


def place_name(subject: Subject | Lost) -> str:
    """Strategy, workload and shape of a figure, or of a case without one."""
    return f"{subject.strategy} on {subject.workload} · {subject.shape}"


def series_name(verdict: SeriesVerdict) -> str:
    """Name of a series: strategy, workload, shape and metric."""
    subject = verdict.series.subject
    return f"{place_name(subject)}: {metric_name(subject)}"


def statement(verdict: SeriesVerdict) -> tuple[str, str]:
    """Name of a series, and its change, drift or last measurement."""
    if verdict.change is None:
        is_drift = verdict.state == "drifting"
        last = phrases.LAST_MEASURED.format(date=date_of(int(verdict.series.days[-1])))
        return series_name(verdict), drift_text(verdict) if is_drift else last
    # The text of a change begins with its metric.
    reason = f": {verdict.reason}" if verdict.reason else ""
    return place_name(verdict.series.subject), f"{moved(verdict)}{reason}"


def moved(verdict: SeriesVerdict) -> str:
    """Size of a change, its first night, and its length."""
    change, since = verdict.change, verdict.since
    assert change is not None
    assert since is not None
    text = phrases.MOVED.format(
        change=change_text(verdict),
        night=since.name,
        n_nights=f"{change.n_nights} night{'s' if change.n_nights != 1 else ''}",
    )
    if verdict.has_figure:
        return text
    return f"{text}; {phrases.LAST_MEASURED.format(date=date_of(int(verdict.series.days[-1])))}"


def change_text(verdict: SeriesVerdict, *, is_brief: bool = False) -> str:
    """Size of a change with its 95 % interval: `median step 1.22× (1.20–1.25)`.

    If the level has changed again since, the original size follows: `; 1.30× at first)`.
    """
    factor, first = times(verdict.factor), times(verdict.first_factor)
    phrase = (
        phrases.CHANGE_IN_BRIEF
        if is_brief
        else phrases.CHANGE
        if factor == first
        else phrases.CHANGE_OF_SEVERAL
    )
    metric, interval = metric_name(verdict.series.subject), limits(verdict.interval)
    return phrase.format(metric=metric, factor=factor, interval=interval, first=first)


def drift_text(verdict: SeriesVerdict) -> str:
    """Speed and size of a drift: `+3.6 % a week, 1.12× since 2026-10-01`."""
    drift, since = verdict.analysis.drift, verdict.drift_since
    assert drift is not None
    assert since is not None
    weekly = 100 * math.expm1(drift.slope * 7)
    return phrases.DRIFT.format(weekly=weekly, factor=times(verdict.drift_factor), night=since.name)
