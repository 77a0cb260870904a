"""Folders of the files that a user's references name, which workers read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.experiment.cases import Case
from harness.experiment.spec import ExperimentSpec


def folders_of_users(cases: Sequence[Case], spec: ExperimentSpec) -> tuple[Path, ...]:
    """Each once: of workloads, strategies and the checkpoint that cases begin with."""
    named = [case.workload.reference.partition(":")[0] for case in cases if case.workload.is_path]
    named += [case.strategy.name.partition(":")[0] for case in cases if case.strategy.is_file]
    folders = {Path(name).resolve().parent for name in named}
    restore = spec.checkpoint.restore
    if restore is not None:
        folders.add(restore if restore.is_dir() else restore.parent)
    return tuple(sorted(folders))
