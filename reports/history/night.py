"""A run that becomes a night of a history."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.records.circumstances import Repository
from reports.history.database import HistoryError
from reports.history.figures import Figure, Lost, figures_of
from reports.history.store import History, Night
from reports.load import Run, load

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
"""A commit's name in full, by either of git's hashes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewNight:
    """A night before it is in a history.

    Attributes:
        run: its id; a run that is there already is not written again.
        is_damaged: whether something of its run folder is damaged or gone.
    """

    figures: Sequence[Figure]
    lost: Sequence[Lost]
    started_utc: str
    experiment: str
    run: str
    run_dir: str
    git_sha: str | None
    git_dirty: bool | None
    workload_commits: Mapping[str, Repository] = field(default_factory=dict)
    is_damaged: bool = False

    def added_to(self, history: History) -> Night:
        """Write it, all of it or nothing."""
        return history.add(
            self.figures,
            self.lost,
            started_utc=self.started_utc,
            experiment=self.experiment,
            run=self.run,
            run_dir=self.run_dir,
            git_sha=self.git_sha,
            git_dirty=self.git_dirty,
            workload_commits=self.workload_commits,
        )


def added(history: History, folder: Path, *, tell: Callable[[str], None]) -> Night:
    """Write what a run folder has to say; a run that is there already is not written again.

    Args:
        tell: hears what of the folder could not be used.
    Raises:
        harness.errors.StoreError: it is no run folder. HistoryError: nobody knows of which night it is.
    """
    return run_night(folder, tell=tell).added_to(history)


def run_night(folder: Path, *, tell: Callable[[str], None]) -> NewNight:
    """What a run folder has to say, as a night that can be written; all as for `added`."""
    run = load(folder)
    if not run.stored.created_utc:
        raise HistoryError(f"{folder} must say when its run began, got nothing; its run.json is damaged")
    for item in run.left_out:
        tell(f"left out: {folder}: {item.where}: {item.why}")
    figures, lost = figures_of(run)
    provenance = next((record.provenance for record in run.records if record.provenance), None)
    git_sha = provenance.git_sha if provenance else None
    return NewNight(
        figures=figures,
        lost=lost,
        started_utc=run.stored.created_utc,
        experiment=str(run.experiment.get("name") or run.name),
        run=run.name,
        run_dir=str(folder),
        git_sha=full_commit(git_sha, source=folder, tell=tell),
        git_dirty=provenance.git_dirty if provenance else None,
        workload_commits=dict(_workload_commits(run, source=folder, tell=tell)),
        is_damaged=any(item.is_damage for item in run.left_out),
    )


def _workload_commits(
    run: Run, *, source: Path, tell: Callable[[str], None]
) -> Iterator[tuple[str, Repository]]:
    """Each workload of a user's file, and the repository that holds it."""
    provenances = {record.workload: record.provenance for record in run.records if record.provenance}
    for workload, provenance in provenances.items():
        if provenance.workload is not None:
            git_sha = full_commit(provenance.workload.git_sha, source=source, tell=tell)
            yield workload, replace(provenance.workload, git_sha=git_sha)


def full_commit(name: str | None, *, source: Path, tell: Callable[[str], None]) -> str | None:
    """The commit that a document names in full; None where it names none, or anything else.

    It becomes an argument of git, which must not take it for an option.

    Args:
        source: of the document. tell: hears that the name could not be used.
    """
    if name is None or _COMMIT.fullmatch(name):
        return name
    tell(f"{source} must name its commit by 40 or 64 hex digits, got {name!r:.80}; the night has no commit")
    return None
