"""The commits that a change of a series may have come with: of stratbench, and of the workload's file."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from harness.experiment.references import file_of
from harness.host_facts import checkout_of, commits_between, own_checkout
from harness.records.facts.circumstances import Repository
from reports.history.figures import BENCHMARKS
from reports.history.store import Night
from reports.history.verdicts import SeriesVerdict
from reports.history.wording import STRATBENCH, workload_commit

_SHORT = 10


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
        at = f" at {repository.git_sha[:_SHORT]}" if repository.git_sha else ""
        yield f"{repository.name}{at}: changes that were not committed"


def _between(file: Path, earlier: Repository, later: Repository) -> Iterator[str]:
    if not earlier.git_sha or not later.git_sha or earlier.git_sha == later.git_sha:
        return
    root = _checkout(file)
    commits = _commits(root, earlier.git_sha, later.git_sha) if root else ()
    yield from (f"{later.name} {commit}" for commit in commits)
    if not commits:
        span = f"{earlier.git_sha[:_SHORT]} to {later.git_sha[:_SHORT]}"
        yield f"{later.name} {span}: not in a checkout that is found from here"


def _own(before: Night, since: Night) -> Iterator[str]:
    if not before.git_sha or not since.git_sha or before.git_sha == since.git_sha:
        return
    root, name = own_checkout(), STRATBENCH
    if since.experiment == BENCHMARKS and (here := _checkout(Path("here"))) is not None:
        # Files of benchmarks name the commit of the code that they are of.
        root, name = here, here.name
    yield from (f"{name} {commit}" for commit in _commits(root, before.git_sha, since.git_sha))


# Many series change with one night, and each is told of in several places.
_commits = cache(commits_between)
_checkout = cache(checkout_of)
