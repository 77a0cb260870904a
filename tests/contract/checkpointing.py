"""Saving and restoring with all workers in one process, as a run does it on real ones."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cases import Case

from harness.verification.worker.in_process import InProcessCluster, programs_of
from harness.worker.session.capture_store import InitialValues, save_values
from harness.worker.session.checkpoint import contribution, read_checkpoint, write_checkpoint
from harness.worker.variable_parts import values_of
from strategies.plan.schema import Plan


def save(case: Case, cluster: InProcessCluster, folder: Path, step: int) -> None:
    cluster.each(lambda session: session.settle(len(cluster.sessions)))
    shared = {v.name for v in case.step.variables if v.rule != "per-replica"}
    contributions = cluster.each(lambda session: contribution(session.read(), shared))
    write_checkpoint(folder, values_of(contributions), {v.name for v in case.step.variables}, step)


def restored(case: Case, checkpoint: Path) -> Case:
    """The case that begins with a checkpoint."""
    model = {v.name: case.initial.value(v.name) for v in case.step.variables}
    folder = checkpoint.parent / f"{checkpoint.name}-restored"
    folder.mkdir()
    save_values(folder, read_checkpoint(checkpoint, model).values)
    return replace(case, initial=InitialValues(folder), _references={})


def steps(
    case: Case, plan: Plan, batches: Sequence[Sequence[Any]], checkpoint: Path | None = None
) -> Mapping[Any, Any]:
    """State after the steps of a plan; saved too, if a folder is given."""
    with InProcessCluster(programs_of(case.step, plan), case.initial) as cluster:
        for batch in batches:
            cluster.step(batch)
        if checkpoint is not None:
            save(case, cluster, checkpoint, len(batches))
        return cluster.read()
