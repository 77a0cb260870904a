"""The SQLite file of a history, and its lock: opened by one writer at a time, and only where it is ours."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from reports.history import schema

_BUSY_S = 30.0
_PRIMARY = 0xFF
"""Of SQLite's extended error codes, what says which kind an error is of."""
_NEXT_TO_NOTHING = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)


class HistoryError(Exception):
    """A history that cannot be used as asked."""


class HistoryInUseError(HistoryError):
    """Another process writes this history."""

    exit_status: ClassVar[int] = 3


class DiskFullError(HistoryError):
    """The disk of a history takes no more."""

    exit_status: ClassVar[int] = 3


@contextlib.contextmanager
def needing_room(folder: Path) -> Iterator[None]:
    """Say in one line that a disk is full, whatever it was that found out.

    Raises:
        DiskFullError: it is.
    """
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        if not _is_full(error, folder):
            raise
        free = f"{_free_bytes(folder) >> 10} KiB free"
        raise DiskFullError(
            f"the disk of {folder} must have room for the history, got {free}; it is as it was: make room, "
            "and add a run that is there by `nightly --import RUN_DIR`"
        ) from None


def _is_full(error: OSError | sqlite3.Error, folder: Path) -> bool:
    if isinstance(error, OSError):
        return error.errno in _FULL
    code = getattr(error, "sqlite_errorcode", 0)
    # Where files beside the database cannot grow, it is an error of input and output.
    is_io = code & _PRIMARY == sqlite3.SQLITE_IOERR and _free_bytes(folder) < _NEXT_TO_NOTHING
    return code == sqlite3.SQLITE_FULL or is_io


def _free_bytes(folder: Path) -> int:
    """What the disk has left that a folder is on, or would be on."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file, made with its folder if need be, for this process alone.

    Raises:
        HistoryInUseError: another process has it. HistoryError: it cannot be had.
    """
    folder = path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        if error.errno in _FULL:
            raise
        raise HistoryError(f"{folder} must be writable, got {error.strerror}; name another folder") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 200, 0).decode(errors="replace").strip() or "another process"
            raise HistoryInUseError(f"{folder} is in use by {holder}; wait for it") from None
        except OSError as error:
            raise HistoryError(
                f"{folder} must allow locks, got {error.strerror}; name another folder"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()} since {datetime.now(UTC):%Y-%m-%d %H:%M} UTC".encode(), 0)
        yield
    finally:
        os.close(lock)


def connected(path: Path, *, is_read: bool = False) -> sqlite3.Connection:
    """An open database of ours, or one without anything in it.

    Raises:
        HistoryError: it is another's, a newer one, or cannot be opened.
    """
    connection = None
    try:
        connection = sqlite3.connect(
            f"{path.resolve().as_uri()}?mode={'ro' if is_read else 'rwc'}", timeout=_BUSY_S, uri=True
        )
        if not schema.is_ours(connection):
            raise HistoryError(f"{path} must be a history, got another database; name another folder")
        version = schema.version_of(connection)
        if not is_read:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA foreign_keys = ON")
    except (sqlite3.Error, HistoryError) as error:
        if connection is not None:
            connection.close()
        if isinstance(error, HistoryError) or _is_full(error, path.parent):
            raise
        raise HistoryError(f"{path} must be a history, got {error}; name another folder") from None
    if version > schema.VERSION:
        connection.close()
        raise HistoryError(
            f"{path} must have tables of version {schema.VERSION} at most, got {version}; use the stratbench "
            "that wrote it"
        )
    return connection
