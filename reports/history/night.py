"""A run that becomes a night of a history."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from reports.history.database import HistoryError
from reports.history.figures import figures_of
from reports.history.store import History, Night
from reports.load import load


def added(history: History, folder: Path, *, tell: Callable[[str], None]) -> Night:
    """Write what a run folder has to say; a run that is there already is not written again.

    Args:
        tell: hears what of the folder could not be used.
    Raises:
        harness.errors.StoreError: it is no run folder. HistoryError: nobody knows of which night it is.
    """
    run = load(folder)
    if not run.stored.created_utc:
        raise HistoryError(f"{folder} must say when its run began, got nothing; its run.json is damaged")
    for item in run.left_out:
        tell(f"left out: {folder}: {item.where}: {item.why}")
    figures, lost = figures_of(run)
    provenance = next((record.provenance for record in run.records if record.provenance), None)
    return history.add(
        figures,
        lost,
        started_utc=run.stored.created_utc,
        experiment=str(run.experiment.get("name") or run.name),
        run=run.name,
        run_dir=str(folder),
        git_sha=provenance.git_sha if provenance else None,
        git_dirty=provenance.git_dirty if provenance else None,
    )
