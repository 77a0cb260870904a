"""A run folder for one process alone."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from harness.contained_files import open_to_write
from harness.errors import UsageError
from harness.records.run_layout import LOCK_FILE


def hold(path: Path) -> int:
    """Take a run folder for this process alone, made if need be; closing the descriptor lets it go.

    Raises:
        UsageError: another process has it, or it cannot be written to. StoreError: its lock is a link, or no
            regular file.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = open_to_write(path / LOCK_FILE)
    except OSError as error:
        raise unwritable(path, error) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise UsageError(
            f"{path} is in use by another run; wait for it or name another folder", field="out"
        ) from None
    return lock


def unwritable(path: Path, error: OSError) -> UsageError:
    """The error for a run folder that cannot be written to."""
    return UsageError(
        f"the run folder must be writable, got {error.strerror or error} for {path}; "
        "choose another with --out",
        field="out",
    )
