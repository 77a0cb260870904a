"""Tables of a history, and how an older one becomes one of today's."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence

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
"""Each takes a history one version further; the first makes it."""
VERSION = len(MIGRATIONS)
APPLICATION = 0x53545242
"""Application number in SQLite files of ours: STRB."""


def version_of(connection: sqlite3.Connection) -> int:
    """Version of a database's tables; 0 for an empty one."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def is_ours(connection: sqlite3.Connection) -> bool:
    """Whether a database is a history, or has nothing in it yet."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (n_tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return int(application) == APPLICATION or (not application and not n_tables)


def has_its_tables(connection: sqlite3.Connection) -> bool:
    """Return True if a database has the tables and columns of its version."""
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
    """Bring tables to a version, each step whole or not at all."""
    for number in range(version_of(connection), version):
        connection.executescript(
            f"BEGIN; {MIGRATIONS[number]} PRAGMA application_id = {APPLICATION}; "
            f"PRAGMA user_version = {number + 1}; COMMIT;"
        )
