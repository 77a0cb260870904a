"""A run that becomes a night of a history."""

from __future__ import annotations

from pathlib import Path

from reports.history.figures import figures_of
from reports.history.store import History, Night
from reports.load import load


def added(history: History, folder: Path) -> Night:
    """Write what a run folder has to say; a run that is there already is not written again.

    Raises:
        harness.errors.StoreError: it is no run folder.
    """
    run = load(folder)
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
