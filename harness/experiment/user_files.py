"""Folders of the files that a user's references name, which workers read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.experiment.cases import Case
from harness.experiment.model import Experiment
from harness.experiment.references import file_of
from harness.normalised_path import normalised


def folders_of_users(cases: Sequence[Case], spec: Experiment) -> tuple[Path, ...]:
    """Each once: of workloads, strategies and the checkpoint that cases begin with.

    Of a file that is reached by a link there are two folders: workers open it where it is named, and its
    neighbours may be where it lies.
    """
    named = [file_of(case.workload.reference) for case in cases if case.workload.is_path]
    named += [file_of(case.strategy.name) for case in cases if case.strategy.is_file]
    files = {path for name in named for path in (normalised(name), name.resolve())}
    # Where `..` comes after a link, the path as it is written may name a folder that is not there.
    folders = {path.parent for path in files if path.parent.is_dir()}
    if spec.checkpoint.restore is not None:
        restore = normalised(spec.checkpoint.restore)
        folders.add(restore if restore.is_dir() else restore.parent)
    return tuple(sorted(folders))
