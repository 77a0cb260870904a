"""Outputs of a judged night: answer, trend page, and figures for Prometheus."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path

from harness.atomic_files import write_output, write_text
from harness.canonical import canonical_hash, slug
from harness.cli import output
from harness.cli.output import Answer, answer_in_lines
from harness.errors import EXIT_CASE, EXIT_OK, EXIT_REGRESSION, StoreError, UsageError
from harness.experiment.references import file_of
from harness.host_facts import checkout_of, commits_between, own_checkout
from harness.measure.prometheus import NightFigures, SeriesFigure, night_page
from harness.records.conditions import Repository, short_hash
from reports.history import verdict_text
from reports.history.database import HistoryError
from reports.history.figures import BENCHMARKS
from reports.history.store import History, Night, reading
from reports.history.trend_page import trend_page
from reports.history.verdict_text import STRATBENCH, Commits, workload_commit
from reports.history.verdicts import NightVerdict, SeriesVerdict


def commits_of(verdict: SeriesVerdict) -> tuple[str, ...]:
    """Changes of the code between the nights before and after a change, each line with its repository."""
    before, since = verdict.before, verdict.since
    if before is None or since is None:
        return ()
    return (*_of_workload(before, since, verdict.series.subject.workload), *_own(before, since))


def _of_workload(before: Night, since: Night, workload: str) -> Iterator[str]:
    earlier, later = workload_commit(before, workload), workload_commit(since, workload)
    if later is None:
        return
    reference, repository = later
    if earlier is not None:
        yield from _between(file_of(reference), earlier[1], repository)
    if repository.git_dirty:
        at = f" at {short_hash(repository.git_sha)}" if repository.git_sha else ""
        yield f"{repository.name}{at}: uncommitted changes"


def _between(file: Path, earlier: Repository, later: Repository) -> Iterator[str]:
    if not earlier.git_sha or not later.git_sha or earlier.git_sha == later.git_sha:
        return
    root = _checkout(file)
    commits = _commits(root, earlier.git_sha, later.git_sha) if root else ()
    yield from (f"{later.name} {commit}" for commit in commits)
    if not commits:
        span = f"{short_hash(earlier.git_sha)} to {short_hash(later.git_sha)}"
        yield f"{later.name} {span}: commits not in a checkout on this machine"


def _own(before: Night, since: Night) -> Iterator[str]:
    if not before.git_sha or not since.git_sha or before.git_sha == since.git_sha:
        return
    root, name = own_checkout(), STRATBENCH
    if since.experiment == BENCHMARKS and (here := _checkout(Path("here"))) is not None:
        # Files of benchmarks name the commit of their code.
        root, name = here, here.name
    yield from (f"{name} {commit}" for commit in _commits(root, before.git_sha, since.git_sha))


# Many series change in one night, and several places show each.
_commits = cache(commits_between)
_checkout = cache(checkout_of)


def prometheus_for(path: Path | None, *, named: str, experiment: str) -> Path | None:
    """File to write; None with a message if the night is of another experiment than the named one.

    Args:
        named: experiment whose file it is. experiment: experiment of the night.
    """
    if path is None or named == experiment:
        return path
    output.warn(
        f"{path} is for nights of {named}, got one of {experiment}; use another file for {experiment}"
    )
    return None


def _warn_unwritable(path: Path, error: Exception, way_out: str) -> None:
    reason = error.strerror if isinstance(error, OSError) else error
    output.warn(f"{path} cannot be written ({reason}); the night is in the history: {way_out}")


def write_page(path: Path, verdict: NightVerdict) -> None:
    """Write a night's figures for Prometheus; a failure costs a line, because the night is in the history."""
    night = NightFigures(
        experiment=verdict.night.experiment,
        began_s=datetime.fromisoformat(verdict.night.started_utc).timestamp(),
        n_by_state=verdict.counts,
        n_lost=len(verdict.lost),
        series=tuple(map(_series_figure, verdict.series)),
    )
    try:
        write_output(path, night_page(night))
    except OSError as error:
        way_out = f"write it with `nightly replay EXPERIMENT {verdict.night.name}` and another --prometheus"
        _warn_unwritable(path, error, way_out)


def _series_figure(verdict: SeriesVerdict) -> SeriesFigure:
    subject = verdict.series.subject
    drift = verdict.drift_factor if verdict.drift_is_new else None
    return SeriesFigure(
        labels={
            "case": subject.case,
            "workload": subject.workload,
            "shape": subject.shape,
            "strategy": subject.strategy,
            "metric": subject.metric,
            "against": subject.against,
        },
        value=float(verdict.series.values[-1]) if verdict.has_figure else None,
        regression=verdict.factor if verdict.state == "regressed" else drift,
    )


def nights_of(history: History, experiment: str, *, field: str) -> Sequence[Night]:
    """Nights of an experiment, the oldest first.

    Raises:
        UsageError: the history has none.
    """
    nights = [night for night in history.nights() if night.experiment == experiment]
    if not nights:
        store = history.folder
        raise UsageError(
            f"needs nights of {experiment} in {store}, got {history.holdings()}; name an experiment that it "
            f"holds, or add nights by `stratbench nightly run {experiment} --store {store}`",
            field=field,
        )
    return nights


TREND = "trend.html"
"""Page of a store's first experiment."""


def live_page(history: History, experiment: str) -> Path:
    """Page of an experiment's newest night."""
    nights = history.nights()
    if not nights or min(nights, key=lambda night: night.id).experiment == experiment:
        return history.folder / TREND
    name = slug(experiment)
    unlike_others = "" if name == experiment else f"-{canonical_hash(experiment)[:8]}"
    return history.folder / f"trend-{name}{unlike_others}.html"


def page_of(history: History, night: Night) -> Path:
    """Page of a night: the live page for its experiment's newest night, its own page for others."""
    newest = history.newest(night.experiment)
    if newest is None or newest.id == night.id:
        return live_page(history, night.experiment)
    # No experiment's page has this prefix, whatever its name.
    return history.folder / f"night-{night.name}.html"


def write_trend(store: Path, verdict: NightVerdict, commits: Commits) -> Path | None:
    """Write the page of a night atomically.

    Returns:
        Its path; None with a message if it cannot be written: the night itself is in the history.
    """
    path, night = store / TREND, verdict.night
    try:
        with reading(store) as history:
            page = trend_page(history, verdict, commits)
        # Another night may have been added in the meantime: it has the live page.
        with reading(store) as history:
            live, newest = live_page(history, night.experiment), history.newest(night.experiment)
            path = page_of(history, night)
            write_text(path, page)
    except (OSError, sqlite3.Error, HistoryError, StoreError) as error:
        _warn_unwritable(path, error, f"write its page with `nightly replay EXPERIMENT {night.name}`")
        return None
    if path != live and newest is not None:
        output.warn(f"{path} is the page of {night.name}; {live.name} stays that of {newest.name}")
    return path


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedNight:
    """A night's verdict, and its page.

    Attributes:
        report: trend page; None if it could not be written.
    """

    verdict: NightVerdict
    report: Path | None


def publish(store: Path, verdict: NightVerdict, *, prometheus: Path | None = None) -> PublishedNight:
    """Write a night's files; a failure costs a line, because the night is in the history.

    Args:
        prometheus: file of metrics; None for none.
    """
    report = write_trend(store, verdict, commits_of)
    if prometheus is not None:
        write_page(prometheus, verdict)
    return PublishedNight(verdict=verdict, report=report)


def night_answer(
    store: Path,
    night: PublishedNight,
    *,
    otherwise: int,
    heading: Sequence[str] = (),
    fields: Mapping[str, object] | None = None,
    others: Sequence[PublishedNight] = (),
) -> Answer:
    """Report of a night, for a person and for a program.

    Args:
        otherwise: exit status if nothing has regressed or newly drifts, and no case failed.
        heading: lines above all others. fields: further fields of the document.
        others: nights of other experiments, with a line each; the status covers all nights.
    """
    verdict = night.verdict
    lines = [
        *(
            f"{other.verdict.night.experiment}: {verdict_text.verdict_line(other.verdict)}"
            for other in others
        ),
        *heading,
        verdict_text.verdict_line(verdict),
        *verdict_text.further_lines(verdict, commits_of),
        *([f"code: {', '.join(code)}"] if (code := verdict_text.code_of(verdict.night)) else []),
        *([] if night.report is None else [f"report: {night.report}"]),
    ]
    entries = [{"experiment": other.verdict.night.experiment, **_entry(other)} for other in others]
    document = {
        **(fields or {}),
        **({"others": entries} if entries else {}),
        "store": str(store),
        **_entry(night),
    }
    verdicts = [published.verdict for published in (night, *others)]
    return answer_in_lines(lines, document, _exit_status(verdicts, otherwise))


def _exit_status(verdicts: Sequence[NightVerdict], otherwise: int) -> int:
    if any(verdict.regressed or verdict.new_drifts for verdict in verdicts):
        return EXIT_REGRESSION
    # A failed case has the same status in a run, an import and a replay.
    has_failures = any(verdict.has_failures for verdict in verdicts)
    return EXIT_CASE if otherwise == EXIT_OK and has_failures else otherwise


def _entry(night: PublishedNight) -> Mapping[str, object]:
    return {
        **verdict_text.document_of(night.verdict, commits_of),
        "report": None if night.report is None else str(night.report),
    }
