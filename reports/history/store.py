"""History of nightly runs: a SQLite database and the run folders beside it.

A night is written in one transaction: after any crash, the history opens and has every complete night.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from harness.records.conditions import Repository
from harness.records.contained_files import make_folder
from reports.history import database
from reports.history.database import (
    DATABASE,
    LOCK,
    SUBJECT_COLUMNS,
    HistoryError,
    connected,
    date_of,
    day_of,
    locked,
    named_errors,
    needing_room,
    require_begun,
)
from reports.history.figures import Lost, NewNight, Subject
from reports.history.integrity import require_intact, seal
from reports.history.step_test import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """A run of the history.

    Attributes:
        name: date; from the second run of a date on, a number follows.
        day: days since a Monday.
        git_sha, git_dirty: commit of stratbench, or of the code that a file of benchmarks measured; True if
            it had uncommitted changes.
        workload_commits: reference of a user's workload → repository of its file.
    """

    id: int
    name: str
    started_utc: str
    day: int
    experiment: str
    run: str
    run_dir: str
    git_sha: str | None
    git_dirty: bool | None
    workload_commits: Mapping[str, Repository]

    @property
    def moment(self) -> tuple[str, int]:
        """Sort key of nights: an older one may be written later."""
        return self.started_utc, self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Values of a figure in all nights.

    Attributes:
        nights: [n], ids of nights, the oldest first.
        days, values: [n], days and values of these nights.
        errors: [n], standard errors of logarithms; NaN if unknown.
    """

    subject: Subject
    nights: IntArray
    days: IntArray
    values: FloatArray
    errors: FloatArray


def nights_where(connection: sqlite3.Connection, clause: str, *values: object) -> list[Night]:
    """Nights selected and ordered by an SQL clause."""
    names = [field.name for field in dataclasses.fields(Night)]
    rows = connection.execute(f"SELECT {', '.join(names)} FROM night {clause}", values)  # noqa: S608 - a clause of our own
    return [_night_of(dict(zip(names, row, strict=True))) for row in rows]


def _night_of(columns: dict[str, Any]) -> Night:
    dirty, commits = columns["git_dirty"], json.loads(columns["workload_commits"] or "{}")
    repositories = {workload: Repository(**fields) for workload, fields in commits.items()}
    is_dirty = None if dirty is None else bool(dirty)
    return Night(**{**columns, "git_dirty": is_dirty, "workload_commits": repositories})


def insert_night(connection: sqlite3.Connection, new: NewNight, *, started_utc: str) -> int:
    """Write a night's own row, and return its id."""
    day = day_of(started_utc)
    n_same = len(nights_where(connection, "WHERE day = ?", day))
    commits = {workload: dataclasses.asdict(commit) for workload, commit in new.workload_commits.items()}
    row = {
        # Numbered from the second night of a date on.
        "name": f"{date_of(day)}.{n_same + 1}" if n_same else f"{date_of(day)}",
        "started_utc": started_utc,
        "day": day,
        "experiment": new.experiment,
        "run": new.run,
        "run_dir": new.run_dir,
        "git_sha": new.git_sha,
        "git_dirty": new.git_dirty,
        "workload_commits": json.dumps(commits, sort_keys=True) if commits else None,
    }
    names, places = ", ".join(row), ", ".join("?" * len(row))
    cursor = connection.execute(f"INSERT INTO night ({names}) VALUES ({places})", tuple(row.values()))  # noqa: S608 - names of our own
    return int(cursor.lastrowid or 0)


def insert_figures(connection: sqlite3.Connection, night: int, new: NewNight) -> None:
    """Write the figures of a night, and the cases without one."""
    connection.executemany(
        "INSERT INTO figure (series, night, value, error, n) VALUES (?, ?, ?, ?, ?)",
        [(_series_id(connection, f.subject), night, f.value, f.error, f.n) for f in new.figures],
    )
    connection.executemany(
        f"INSERT INTO lost (night, {_LOST_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - names of our own
        [(night, *dataclasses.astuple(case)) for case in new.lost],
    )


def _series_id(connection: sqlite3.Connection, subject: Subject) -> int:
    """Id of a series, which is written if it is new."""
    values = dataclasses.astuple(subject)
    places = ", ".join("?" * len(values))
    connection.execute(
        f"INSERT INTO series ({SUBJECT_COLUMNS}) VALUES ({places}) ON CONFLICT DO NOTHING",  # noqa: S608 - names of our own
        values,
    )
    rows = connection.execute(
        "SELECT id FROM series WHERE case_id = ? AND comparison_key = ? AND lock_hash = ? AND metric = ? "
        "AND against = ?",
        (subject.case, subject.comparison_key, subject.lock_hash, subject.metric, subject.against),
    )
    return int(rows.fetchone()[0])


RUNS = "runs"
_LOST_COLUMNS = "case_id, workload, shape, strategy, status, message"
Clock = Callable[[], datetime]
_CLOCKS_DIFFER = timedelta(minutes=10)
"""Largest accepted lead of another machine's clock."""
_FIGURE = np.dtype(
    [
        ("series", np.int64),
        ("night", np.int64),
        ("day", np.int64),
        ("value", np.float64),
        ("error", np.float64),
    ]
)


@contextlib.contextmanager
def writing(folder: Path, *, clock: Clock | None = None) -> Iterator[History]:
    """Open a history for writing by this process alone; create it if it does not exist.

    Args:
        clock: source of the current time; nights that start later are refused. None accepts them.
    Raises:
        HistoryInUseError: another process has it open.
        DiskFullError: its disk is full.
        HistoryError: it cannot be opened.
    """
    path = folder / DATABASE
    with named_errors(path), contextlib.ExitStack() as stack:
        stack.enter_context(locked(folder / LOCK))
        if not path.exists():
            require_begun(path)
        if os.path.lexists(folder / RUNS):
            make_folder(folder, RUNS)  # refuses a link, which would redirect run folders
        connection = stack.enter_context(contextlib.closing(connected(path)))
        database.migrate(connection, version=database.VERSION)
        require_intact(connection, path)
        yield History(folder=folder, connection=connection, clock=clock)


@contextlib.contextmanager
def reading(folder: Path) -> Iterator[History]:
    """Open an existing history for reading, also while another process writes it.

    Raises:
        HistoryError: there is none, or it cannot be opened.
    """
    path = folder / DATABASE
    if not path.exists():
        require_begun(path)
        raise HistoryError(f"{folder} must hold a history, got none; `stratbench nightly run` creates one")
    with named_errors(path), contextlib.ExitStack() as stack:
        connection = stack.enter_context(contextlib.closing(connected(path, is_read=True)))
        version = database.version_of(connection)
        if version == database.VERSION:
            require_intact(connection, path)
            yield History(folder=folder, connection=connection)
            return
    # Opening for writing migrates an older version.
    with writing(folder) as history:
        yield history


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """An open history.

    Attributes:
        folder: contains the database, and run folders in `runs`.
        clock: source of the current time; nights that start later are refused. None accepts them.
    """

    folder: Path
    connection: sqlite3.Connection
    clock: Clock | None = None

    def add(self, new: NewNight) -> Night:
        """Write a night completely or not at all.

        Figures of a stored run are replaced: it may have been resumed since.

        Raises:
            HistoryError: the night starts in the future.
            DiskFullError: the disk is full.
        """
        started_utc = self.require_begun(new.started_utc).isoformat()
        with needing_room(self.folder), self.connection:
            known = nights_where(self.connection, "WHERE run = ?", new.run)
            if known:
                night_id = known[0].id
                self.connection.execute("DELETE FROM figure WHERE night = ?", (night_id,))
                self.connection.execute("DELETE FROM lost WHERE night = ?", (night_id,))
            else:
                night_id = insert_night(self.connection, new, started_utc=started_utc)
            insert_figures(self.connection, night_id, new)
            seal(self.connection, night_id)
        (night,) = nights_where(self.connection, "WHERE id = ?", night_id)
        return night

    def checksums(self) -> Mapping[int, str | None]:
        """Checksums of all nights by id; nights older than checksums have none."""
        return dict(self.connection.execute("SELECT id, checksum FROM night"))

    def require_begun(self, started_utc: str) -> datetime:
        """Parse the start of a night; one in the future is refused, because real nights would come before it.

        Raises:
            HistoryError: it is in the future, or no valid date.
        """
        try:
            started = datetime.fromisoformat(started_utc).astimezone(UTC)
        except (ValueError, OverflowError) as error:
            raise HistoryError(
                f"a night must begin on a valid date, got {started_utc!r:.60} ({error}); correct the date in "
                "the imported files"
            ) from None
        if self.clock is not None and started > (now := self.clock()) + _CLOCKS_DIFFER:
            raise HistoryError(
                f"a night must have begun by now, got {started:%Y-%m-%d %H:%M} UTC while the clock says "
                f"{now:%Y-%m-%d %H:%M} UTC; set the clock, or correct the date in the imported files"
            )
        return started

    def newest(self, experiment: str) -> Night | None:
        """The newest night of an experiment; None if there is none."""
        return next((night for night in reversed(self.nights()) if night.experiment == experiment), None)

    def holdings(self) -> str:
        """Number of nights of each experiment, as text."""
        counts = Counter(night.experiment for night in self.nights())
        texts = (f"{n} night{'' if n == 1 else 's'} of {name}" for name, n in sorted(counts.items()))
        return " and ".join(texts) or "no night"

    def nights(self) -> list[Night]:
        """All nights, the oldest first."""
        return nights_where(self.connection, "ORDER BY started_utc, id")

    def series(self, *, until: Night | None = None, n_days: int | None = None) -> list[Series]:
        """All series with a figure.

        Args:
            until: last night, whose experiment is selected; None for all nights and experiments.
            n_days: number of days before it; None for all.
        """
        last = until.moment if until else ("9999", 2**62)
        first = until.day - n_days if until and n_days is not None else -(2**62)
        experiment = until.experiment if until else None
        rows = self.connection.execute(
            "SELECT series, night.id, day, value, coalesce(error, -1) FROM figure "
            "JOIN night ON night.id = night "
            "WHERE (started_utc, night.id) <= (?, ?) AND day > ? AND experiment = coalesce(?, experiment)",
            (*last, first, experiment),
        )
        figures = np.fromiter(rows, dtype=_FIGURE)
        if not len(figures):
            return []
        order = {night.id: place for place, night in enumerate(self.nights())}
        places = np.array([order[night] for night in figures["night"].tolist()], dtype=np.int64)
        figures = figures[np.lexsort((places, figures["series"]))]
        ids, starts = np.unique(figures["series"], return_index=True)
        rows = self.connection.execute(f"SELECT id, {SUBJECT_COLUMNS} FROM series")  # noqa: S608 - names of our own
        names = [field.name for field in dataclasses.fields(Subject)]
        subjects = {series: Subject(**dict(zip(names, values, strict=True))) for series, *values in rows}
        return [
            Series(
                subject=subjects[series],
                nights=of_series["night"].copy(),
                days=of_series["day"].copy(),
                values=of_series["value"].copy(),
                errors=np.where(of_series["error"] < 0, np.nan, of_series["error"]),
            )
            for series, of_series in zip(ids.tolist(), np.split(figures, starts[1:]), strict=True)
        ]

    def lost(self, night: Night) -> list[Lost]:
        """Cases without a figure in a night."""
        rows = self.connection.execute(f"SELECT {_LOST_COLUMNS} FROM lost WHERE night = ?", (night.id,))  # noqa: S608 - names of our own
        names = [field.name for field in dataclasses.fields(Lost)]
        return [Lost(**dict(zip(names, row, strict=True))) for row in rows]

    def acknowledge(self, case: str, *, until: Night, reason: str) -> None:
        """Store that the changes of a case up to a night are known."""
        with needing_room(self.folder), self.connection:
            self.connection.execute("INSERT OR REPLACE INTO known VALUES (?, ?, ?)", (case, until.id, reason))

    def known(self) -> Mapping[str, tuple[int, str]]:
        """Case → id of the last night up to which its changes are known, and the reason."""
        rows = self.connection.execute(
            "SELECT case_id, until_night, reason FROM known JOIN night ON night.id = until_night "
            "ORDER BY started_utc, night.id"
        )
        return {case: (night, reason) for case, night, reason in rows}
