"""Removal of old run folders, when a person asks for it."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from harness.errors import UsageError
from harness.run_layout import LOCK_FILE, RUN_FILE
from harness.run_lock import hold


def remove_old_runs(parent: Path, keep: int) -> Sequence[Path]:
    """Remove run folders directly below a folder, except the newest and those of runs that go on.

    Args:
        keep: how many of the newest stay.
    Returns:
        those that were removed, oldest first.
    """
    found = sorted(
        (_created(each), each)
        for each in parent.glob("*")
        # A link to a run is not another run.
        if (each / RUN_FILE).is_file() and not each.is_symlink()
    )
    old = [folder for _, folder in (found[:-keep] if keep else found)]
    return tuple(folder for folder in old if _remove(folder))


def _remove(folder: Path) -> bool:
    try:
        held = hold(folder)
    except UsageError:
        return False  # its run goes on, or it is somebody else's
    try:
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


def _created(folder: Path) -> str:
    try:
        head = json.loads((folder / RUN_FILE).read_text())
        return str(head["created_utc"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
