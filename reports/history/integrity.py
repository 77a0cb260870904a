"""Integrity of a history: SQLite's own checks, and a checksum of each night."""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from reports.history.database import SUBJECT_COLUMNS, damaged, day_of

Row = Mapping[str, object]
_PARTS = {
    "figure": f"SELECT night, {SUBJECT_COLUMNS}, value, error, n FROM figure JOIN series ON id = series",  # noqa: S608 - names of our own
    "lost": "SELECT * FROM lost",
}
"""Tables with rows of nights → their queries."""
_NOT_HASHED = frozenset(("id", "night", "checksum"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredNight:
    """Rows of a night: its own, and those of each other table."""

    row: Row
    parts: Mapping[str, list[Row]]

    def checksum(self) -> str:
        """Checksum of the rows; columns that later versions add do not change it."""
        parts = {name: _in_order(map(_hashed, rows)) for name, rows in self.parts.items()}
        text = json.dumps([_hashed(self.row), parts], sort_keys=True, default=repr)
        return hashlib.sha256(text.encode()).hexdigest()


def seal(connection: sqlite3.Connection, night: int) -> None:
    """Write a night's checksum, after all its rows."""
    (stored,) = _nights(connection, night)
    connection.execute("UPDATE night SET checksum = ? WHERE id = ?", (stored.checksum(), night))


def require_intact(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a damaged history.

    Raises:
        HistoryError: it is damaged.
        sqlite3.Error: it cannot be read at all.
    """
    for check in ("PRAGMA integrity_check(1)", "PRAGMA foreign_key_check"):
        first = connection.execute(check).fetchone()
        if first is not None and first[0] != "ok":
            raise damaged(path, " ".join(map(str, first)))
    odd = "SELECT case_id FROM known WHERE typeof(case_id) != 'text' OR typeof(reason) != 'text'"
    if connection.execute(odd).fetchone() is not None:
        raise damaged(path, "an acknowledged case is not text")
    for night in _nights(connection):
        damage = _damage_of(night)
        if damage is not None:
            raise damaged(path, f"night {night.row['name']}: {damage}")


def _damage_of(night: StoredNight) -> str | None:
    row = night.row
    # Nights older than checksums have none.
    if row["checksum"] is not None and row["checksum"] != night.checksum():
        return "its figures do not match its checksum"
    try:
        if day_of(str(row["started_utc"])) != row["day"]:
            return f"it began on {row['started_utc']}, but is stored under another day"
    except (ValueError, OverflowError) as wrong:
        return f"its date: {wrong}"
    for figure in night.parts["figure"]:
        value, error = figure["value"], figure["error"]
        if not (_is_positive(value) and (error is None or error == 0 or _is_positive(error))):
            return f"{figure['metric']} of {figure['case_id']} is {value!r:.40} with the error {error!r:.40}"
    return None


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0


def _nights(connection: sqlite3.Connection, night: int | None = None) -> Iterator[StoredNight]:
    """All nights, or one; yielded one at a time, because years of them take a gigabyte."""
    of_night = "WHERE {0} = coalesce(?, {0}) ORDER BY {0}"
    parts = {
        name: groupby(_rows(connection, f"{query} {of_night.format('night')}", night), itemgetter("night"))
        for name, query in _PARTS.items()
    }
    heads = {name: next(groups, None) for name, groups in parts.items()}
    for row in _rows(connection, f"SELECT * FROM night {of_night.format('id')}", night):  # noqa: S608 - names of our own
        of_row: dict[str, list[Row]] = {}
        for name, head in heads.items():
            is_here = head is not None and head[0] == row["id"]
            of_row[name] = list(head[1]) if head is not None and is_here else []
            if is_here:
                heads[name] = next(parts[name], None)
        yield StoredNight(row=row, parts=of_row)


def _rows(connection: sqlite3.Connection, query: str, *values: object) -> Iterator[Row]:
    cursor = connection.execute(query, values)
    names = [name for name, *_ in cursor.description]
    return (dict(zip(names, row, strict=True)) for row in cursor)


def _hashed(row: Row) -> Row:
    """Row without missing values: a column that a later version adds is missing in older rows."""
    return {name: value for name, value in row.items() if value is not None and name not in _NOT_HASHED}


def _in_order(rows: Iterable[Row]) -> list[Row]:
    """Rows sorted by their values as text, so that damaged rows with other types can be sorted."""
    return sorted(rows, key=lambda row: [str(row[name]) for name in sorted(row)])
