"""A night's verdict in words, and as a document."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.records.legible_text import spelt_out
from reports.history.change_points import LEAST_NIGHTS
from reports.history.verdicts import Cause, NightVerdict, SeriesVerdict
from reports.quantities import digits, limits, times

Commits = Callable[[SeriesVerdict], Sequence[str]]
"""Commits between the last night before a change and its first one, where these are known."""
_N_NAMED = 4


def verdict_line(verdict: NightVerdict) -> str:
    """The answer in a line."""
    counts = ", ".join(f"{count} {state}" for state, count in verdict.counts.items() if count)
    lost = f", {len(verdict.lost)} without a figure" if verdict.lost else ""
    worst = "; ".join(_cause(cause) for cause in verdict.causes)
    return spelt_out(f"{verdict.night.name}: {counts or 'no series'}{lost}{f' - {worst}' if worst else ''}")


def further_lines(verdict: NightVerdict, commits: Commits) -> list[str]:
    """What a person looks at next: regressions, what may become one, what is missing."""
    lines = []
    for each in verdict.regressed:
        lines.append(f"regressed: {series_name(each)}: {moved(each)}")
        lines += [f"  {commit}" for commit in commits(each)]
    for state in ("pending", "improved"):
        lines += [
            f"{state}: {series_name(x)}: {moved(x)}" for x in verdict.series if x.state == state and lasts(x)
        ]
    lines += [
        f"drifting: {series_name(each)}: {drifting_by(each)}"
        for each in verdict.series
        if each.state == "drifting"
    ]
    lines += [f"known: {series_name(x)}: {moved(x)}: {x.why}" for x in verdict.series if x.state == "known"]
    lines += [f"no figure: {x.strategy} on {x.workload} · {x.shape}: {x.message}" for x in verdict.lost]
    return [spelt_out(line) for line in lines]


def document_of(verdict: NightVerdict, commits: Commits) -> dict[str, object]:
    """The verdict as mappings and scalars."""
    return {
        "night": verdict.night.name,
        "verdict": verdict_line(verdict),
        "series": dict(verdict.counts),
        "regressions": [
            {
                "case": each.series.subject.case,
                "workload": each.series.subject.workload,
                "strategy": each.series.subject.strategy,
                "metric": each.series.subject.metric,
                "since": each.since.name if each.since else None,
                "ratio": each.factor,
                "interval": _interval(each),
                "commits": list(commits(each)),
            }
            for each in verdict.regressed
        ],
        "causes": [
            {"what": cause.what, "cases": [each.series.subject.case for each in cause.members]}
            for cause in verdict.causes
        ],
        "lost": [
            {"case": each.case, "status": each.status, "message": each.message} for each in verdict.lost
        ],
    }


def lasts(verdict: SeriesVerdict) -> bool:
    """Whether a change is worth a line: one odd night of a long series is none."""
    if verdict.change is None:
        return False
    return verdict.change.n_nights > 1 or len(verdict.series.days) < LEAST_NIGHTS


def _interval(verdict: SeriesVerdict) -> dict[str, float] | None:
    found = verdict.interval
    return None if found is None else {"low": found.low, "high": found.high}


def series_name(verdict: SeriesVerdict) -> str:
    """What a series is of."""
    subject = verdict.series.subject
    metric = f"{subject.metric} to {subject.against}" if subject.against else subject.metric
    return f"{subject.strategy} on {subject.workload} · {subject.shape}: {metric}"


def moved(verdict: SeriesVerdict) -> str:
    """By how much, since when, and how long that has lasted."""
    change, since = verdict.change, verdict.since
    assert change is not None
    assert since is not None
    nights = f"{change.n_nights} night{'s' if change.n_nights != 1 else ''}"
    noise = f"nights differ by {digits(100 * verdict.analysis.sigma, significant=2)} %"
    interval = f" [{limits(verdict.interval)}]" if verdict.interval else ""
    return f"{times(verdict.factor)}{interval} since {since.name}, {nights}; {noise}"


def drifting_by(verdict: SeriesVerdict) -> str:
    """How fast a series drifts."""
    return f"{100 * verdict.analysis.drift * 7:+.1f} % a week"


def _cause(cause: Cause) -> str:
    shown = [
        f"{each.series.subject.strategy} on {each.series.subject.workload} {each.series.subject.metric} "
        f"{times(each.factor)}"
        for each in cause.members[:_N_NAMED]
    ]
    more = f" and {len(cause.members) - _N_NAMED} more" if len(cause.members) > _N_NAMED else ""
    first = cause.members[0].since
    return f"{cause.what}, since {first.name if first else 'then'}: {', '.join(shown)}{more}"
