"""SQLite file of a history: tables, migrations, lock, and one-line errors."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import ClassVar

from harness.records.contained_files import open_to_write, require_regular

MIGRATIONS: Sequence[str] = (
    """
    CREATE TABLE night (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        started_utc TEXT NOT NULL,
        day INTEGER NOT NULL,
        experiment TEXT NOT NULL,
        run TEXT NOT NULL UNIQUE,
        run_dir TEXT NOT NULL,
        git_sha TEXT,
        git_dirty INTEGER
    );
    CREATE INDEX night_by_day ON night (day);
    CREATE TABLE series (
        id INTEGER PRIMARY KEY,
        case_id TEXT NOT NULL,
        workload TEXT NOT NULL,
        shape TEXT NOT NULL,
        strategy TEXT NOT NULL,
        comparison_key TEXT NOT NULL,
        lock_hash TEXT NOT NULL,
        metric TEXT NOT NULL,
        against TEXT NOT NULL,
        UNIQUE (case_id, comparison_key, lock_hash, metric, against)
    );
    CREATE TABLE figure (
        series INTEGER NOT NULL REFERENCES series (id),
        night INTEGER NOT NULL REFERENCES night (id) ON DELETE CASCADE,
        value REAL NOT NULL,
        error REAL,
        n INTEGER NOT NULL,
        PRIMARY KEY (series, night)
    ) WITHOUT ROWID;
    CREATE TABLE lost (
        night INTEGER NOT NULL REFERENCES night (id) ON DELETE CASCADE,
        case_id TEXT NOT NULL,
        workload TEXT NOT NULL,
        shape TEXT NOT NULL,
        strategy TEXT NOT NULL,
        status TEXT NOT NULL,
        message TEXT NOT NULL,
        PRIMARY KEY (night, case_id)
    ) WITHOUT ROWID;
    CREATE TABLE known (
        case_id TEXT NOT NULL,
        until_night INTEGER NOT NULL REFERENCES night (id) ON DELETE CASCADE,
        reason TEXT NOT NULL,
        PRIMARY KEY (case_id, until_night)
    ) WITHOUT ROWID;
    """,
    # Workload → commit of the repository that holds its file, as JSON.
    "ALTER TABLE night ADD COLUMN workload_commits TEXT;",
    "ALTER TABLE night ADD COLUMN checksum TEXT;",
)
"""Each migrates a history to the next version; the first one creates it."""
VERSION = len(MIGRATIONS)
APPLICATION = 0x53545242
"""SQLite application id of our files: STRB."""


def is_of_history(path: Path) -> bool:
    """Return True if a path without links is that of a history or its lock, but not of a page."""
    is_file = path.name in (LOCK, *(f"{DATABASE}{end}" for end in _BESIDE))
    return is_file and os.path.lexists(path.with_name(DATABASE))


def version_of(connection: sqlite3.Connection) -> int:
    """Version of a database's tables; 0 for an empty database."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def is_ours(connection: sqlite3.Connection) -> bool:
    """Return True if a database is a history, or empty."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (n_tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return int(application) == APPLICATION or (not application and not n_tables)


def has_its_tables(connection: sqlite3.Connection) -> bool:
    """Return True if a database has exactly the tables and columns of its version."""
    with contextlib.closing(sqlite3.connect(":memory:")) as new:
        migrate(new, version=version_of(connection))
        return _columns(connection) == _columns(new)


def _columns(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    return connection.execute(
        "SELECT tables.name, columns.name FROM sqlite_master AS tables "
        "JOIN pragma_table_info(tables.name) AS columns WHERE tables.type = 'table' "
        "AND tables.name NOT LIKE 'sqlite%' ORDER BY tables.name, columns.cid"
    ).fetchall()


def migrate(connection: sqlite3.Connection, *, version: int) -> None:
    """Migrate tables to a version, one transaction per step."""
    for number in range(version_of(connection), version):
        connection.executescript(
            f"BEGIN; {MIGRATIONS[number]} PRAGMA application_id = {APPLICATION}; "
            f"PRAGMA user_version = {number + 1}; COMMIT;"
        )


_BUSY_S = 10.0
_PRIMARY = 0xFF
"""Mask of the primary code in SQLite's extended error codes."""
_FULL_BELOW_BYTES = 1 << 20
_UNUSABLE = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_IOERR)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_FORMAT)
_NO_TEXT = "Could not decode to UTF-8"
"""Start of a message from Python's sqlite3, which has no SQLite error code."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
DATABASE, LOCK = "history.sqlite", "history.lock"
_BESIDE = ("", "-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite opens for a database."""
_SIGNS = ("trend*.html", "night-*.html", "last-night")
"""Files of a store that exist only after its history has a night."""
_WAY_OUT = "restore a backup, or add the run folders to another store by `nightly import`"
_A_MONDAY = date(1970, 1, 5).toordinal()
SUBJECT_COLUMNS = "case_id, workload, shape, strategy, comparison_key, lock_hash, metric, against"


class HistoryError(Exception):
    """A history that cannot be used."""


class NothingUsableError(HistoryError):
    """A run folder without a readable record, or a file of benchmarks without a usable median."""


class HistoryInUseError(HistoryError):
    """A history that another process writes."""

    exit_status: ClassVar[int] = 3


class DiskFullError(HistoryError):
    """A full disk."""

    exit_status: ClassVar[int] = 3


@contextlib.contextmanager
def needing_room(folder: Path) -> Iterator[None]:
    """Replace the errors of a full disk by one line.

    Raises:
        DiskFullError: the disk is full.
    """
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        if not _is_full(error, folder):
            raise
        free = f"{_free_bytes(folder) >> 10} KiB free"
        raise DiskFullError(
            f"the disk of {folder} must have room for the history, got {free}; the history is unchanged: "
            "make room, and add a finished run by `nightly import EXPERIMENT RUN_DIR`"
        ) from None


def _is_full(error: OSError | sqlite3.Error, folder: Path) -> bool:
    if isinstance(error, OSError):
        return error.errno in _FULL
    code = getattr(error, "sqlite_errorcode", 0)
    # SQLite reports an I/O error if the files beside the database cannot grow.
    is_io = code & _PRIMARY == sqlite3.SQLITE_IOERR and _free_bytes(folder) < _FULL_BELOW_BYTES
    return code == sqlite3.SQLITE_FULL or is_io


def _free_bytes(folder: Path) -> int:
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


@contextlib.contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Replace errors of SQLite by one line.

    Raises:
        HistoryInUseError: another program has locked the database.
        DiskFullError: its disk is full.
        HistoryError: it is damaged, no database, or not accessible.
        sqlite3.Error: a mistake in our code.
    """
    try:
        with needing_room(path.parent):
            yield
    except sqlite3.Error as error:
        kind = getattr(error, "sqlite_errorcode", 0) & _PRIMARY
        if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise HistoryInUseError(f"{path} is locked by another program; wait for it, or end it") from None
        if kind == sqlite3.SQLITE_NOTADB:
            raise HistoryError(f"{path} must be a history, got {error}; {_WAY_OUT}") from None
        if kind in _UNUSABLE:
            raise HistoryError(
                f"{path} must be readable and writable, got {error}; check its permissions and its folder's"
            ) from None
        if kind in _DAMAGED or str(error).startswith(_NO_TEXT):
            raise damaged(path, str(error)) from None
        raise


def damaged(path: Path, why: str) -> HistoryError:
    """Error for a history that changed since it was written."""
    return HistoryError(f"{path} must be intact, got damage: {' '.join(why.split())}; {_WAY_OUT}")


def require_begun(path: Path) -> None:
    """Refuse an empty or missing database if other files show that it had nights.

    Raises:
        HistoryError: such a file exists.
    """
    signs = (sign for pattern in _SIGNS for sign in path.parent.glob(pattern) if sign.is_file())
    sign = next(signs, None)
    if sign is not None:
        raise HistoryError(
            f"{path} must contain the nights of {sign.name}, got none; {_WAY_OUT}, or remove "
            f"{', '.join(_SIGNS)} there to start a new history"
        )


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file; create it and its folder if they do not exist.

    Raises:
        HistoryInUseError: another process has the lock.
        HistoryError: the folder is not writable, or does not support locks.
    """
    folder = path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open_to_write(path)
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
    """Open a history, or an empty database.

    Raises:
        HistoryError: it is another program's, of a newer version, was emptied, or cannot be opened.
        harness.errors.StoreError: it is a link, or no regular file.
    """
    # SQLite opens by name, and follows links.
    for end in _BESIDE:
        require_regular(path.with_name(path.name + end))
    connection = None
    try:
        connection = sqlite3.connect(
            f"{path.resolve().as_uri()}?mode={'rw' if is_read else 'rwc'}", timeout=_BUSY_S, uri=True
        )
        # With `mode=ro`, SQLite would leave the files beside the database when it closes it.
        connection.execute(f"PRAGMA query_only = {is_read:d}")
        if not is_ours(connection):
            raise HistoryError(f"{path} must be a history, got another database; name another folder")
        version = version_of(connection)
        if not version:
            require_begun(path)
        if version <= VERSION and not has_its_tables(connection):
            raise damaged(path, f"its tables are not those of version {version}")
        if not is_read:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA foreign_keys = ON")
    except (sqlite3.Error, HistoryError):
        if connection is not None:
            connection.close()
        raise
    if version > VERSION:
        connection.close()
        raise HistoryError(
            f"{path} must have tables of version {VERSION} at most, got {version}; use the stratbench "
            "that wrote it"
        )
    return connection


def day_of(started_utc: str) -> int:
    """Days since a Monday of a time as records write it."""
    return datetime.fromisoformat(started_utc).astimezone(UTC).toordinal() - _A_MONDAY


def date_of(day: int) -> date:
    """Date of a day, given as days since a Monday."""
    return date.fromordinal(day + _A_MONDAY)
