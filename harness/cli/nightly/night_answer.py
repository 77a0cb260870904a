"""The answer of a night, in words, as a document, and as pages for readers and for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from harness.cli import output
from harness.cli.answer import Answer
from harness.cli.nightly.prometheus_file import write_page
from harness.cli.nightly.trend_file import write_trend
from harness.errors import EXIT_REGRESSION
from harness.host_facts import commits_between
from reports.history import wording
from reports.history.verdicts import NightVerdict, SeriesVerdict


def night_answer(
    store: Path,
    verdict: NightVerdict,
    *,
    otherwise: int,
    prometheus: Path | None,
    heading: Sequence[str] = (),
    fields: Mapping[str, object] | None = None,
    others: Sequence[NightVerdict] = (),
) -> Answer:
    """What a person and a program are told of a night.

    Args:
        otherwise: exit status where nothing has regressed.
        prometheus: a file that is written for Prometheus; None for no such file.
        heading: lines above all others. fields: of the document, beside the night's.
        others: nights of other experiments, with a line and a page each; the status is of all.
    """
    report = write_trend(store, verdict, commits_of)
    if prometheus is not None:
        write_page(prometheus, verdict)
    lines = [*heading, wording.verdict_line(verdict), *wording.further_lines(verdict, commits_of)]
    if report is not None:
        lines.append(f"report: {report}")
    if others:
        reports = [write_trend(store, other, commits_of) for other in others]
        lines = [*(_other_line(other) for other in others), *lines]
        fields = {
            **(fields or {}),
            "others": [_other_entry(*each) for each in zip(others, reports, strict=True)],
        }
    return Answer(
        document={
            **(fields or {}),
            "store": str(store),
            **wording.document_of(verdict, commits_of),
            "report": None if report is None else str(report),
        },
        show=partial(_show, lines),
        exit_status=EXIT_REGRESSION if any(each.regressed for each in (verdict, *others)) else otherwise,
    )


def _other_line(verdict: NightVerdict) -> str:
    return f"{verdict.night.experiment}: {wording.verdict_line(verdict)}"


def _other_entry(verdict: NightVerdict, report: Path | None) -> Mapping[str, object]:
    return {
        "experiment": verdict.night.experiment,
        **wording.document_of(verdict, commits_of),
        "report": None if report is None else str(report),
    }


def commits_of(verdict: SeriesVerdict) -> tuple[str, ...]:
    """What was changed in the code between the nights before and after a change."""
    earlier = verdict.before.git_sha if verdict.before else None
    later = verdict.since.git_sha if verdict.since else None
    return _commits(earlier, later) if earlier and later and earlier != later else ()


# Many series change with one night, and each is told of in several places.
_commits = cache(commits_between)


def _show(lines: Sequence[str]) -> None:
    for line in lines:
        output.say(line)
