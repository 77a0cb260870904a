"""Removal of old run folders, when a person asks for it."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from harness.errors import StoreError, UsageError
from harness.records.run_documents import read_head
from harness.records.run_layout import LOCK_FILE, RESULTS, RUN_FILE, is_default_name
from harness.records.run_lock import hold


@dataclass(frozen=True, kw_only=True, slots=True)
class RemovedRuns:
    """Old run folders.

    Attributes:
        folders: those that were removed, or would be, oldest first.
        undated: why others stay that do not say how old they are, a line each.
    """

    folders: tuple[Path, ...] = ()
    undated: tuple[str, ...] = ()


def remove_old_runs(parent: Path, keep: int, *, dry_run: bool = False) -> RemovedRuns:
    """Remove run folders directly below a folder, except the newest and those of runs that go on.

    Those that a person has named are not counted, and stay.

    Args:
        keep: how many of the newest stay.
        dry_run: only list them.
    """
    dated: list[tuple[str, Path]] = []
    undated: list[str] = []
    for each in sorted(parent.glob("*")):
        # A link to a run is not another run.
        if is_default_name(each.name) and not each.is_symlink() and _holds_run(each):
            try:
                dated.append((str(read_head(each)["created_utc"]), each))
            except StoreError as error:
                undated.append(f"{error}; the folder stays")
    dated.sort()
    old = [folder for _, folder in (dated[:-keep] if keep else dated)]
    removed = tuple(folder for folder in old if _remove(folder, dry_run=dry_run))
    return RemovedRuns(folders=removed, undated=tuple(undated))


def _holds_run(folder: Path) -> bool:
    """Return True for a run's folder, also where what says so is gone or replaced."""
    return any(os.path.lexists(folder / name) for name in (RUN_FILE, RESULTS))


def _remove(folder: Path, *, dry_run: bool) -> bool:
    if dry_run and not os.path.lexists(folder / LOCK_FILE):
        return os.access(folder, os.W_OK | os.X_OK)  # holding it would write the lock into it
    try:
        held = hold(folder)
    except (UsageError, StoreError):
        return False  # its run goes on, it is somebody else's, or its lock is a link
    try:
        if dry_run:
            return True
        # What makes it a run folder goes last, so that one half removed is found again; the lock too.
        for item in folder.iterdir():
            if item.name in (RUN_FILE, LOCK_FILE):
                continue
            if item.is_dir() and not item.is_symlink():
                shutil.rmtree(item, ignore_errors=True)
            else:
                item.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(held)
    return not folder.exists()
