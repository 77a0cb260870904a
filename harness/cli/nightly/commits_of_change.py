"""The commits that a change of a series may have come with."""

from __future__ import annotations

from functools import cache

from harness.host_facts import commits_between
from reports.history.verdicts import SeriesVerdict


def commits_of(verdict: SeriesVerdict) -> tuple[str, ...]:
    """What was changed in the code between the nights before and after a change."""
    earlier = verdict.before.git_sha if verdict.before else None
    later = verdict.since.git_sha if verdict.since else None
    return _commits(earlier, later) if earlier and later and earlier != later else ()


# Many series change with one night, and each is told of in several places.
_commits = cache(commits_between)
