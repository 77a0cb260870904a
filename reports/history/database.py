"""The SQLite file of a history, and its lock: opened by one writer at a time, and only where it is ours."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from reports.history import schema

_BUSY_S = 30.0


class HistoryError(Exception):
    """A history that cannot be used as asked."""


class HistoryInUseError(HistoryError):
    """Another process writes this history."""

    exit_status: ClassVar[int] = 3


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
        if isinstance(error, HistoryError):
            raise
        raise HistoryError(f"{path} must be a history, got {error}; name another folder") from None
    if version > schema.VERSION:
        connection.close()
        raise HistoryError(
            f"{path} must have tables of version {schema.VERSION} at most, got {version}; use the stratbench "
            "that wrote it"
        )
    return connection
