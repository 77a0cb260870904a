"""History of nightly runs: a SQLite database and the run folders beside it.

A night is written in one transaction. Whatever ends the process, the history opens and has every night that
was written whole.
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
import numpy.typing as npt

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
from reports.history.soundness import require_sound, seal
from reports.history.step_test import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """A run of the history.

    Attributes:
        name: its date, with a number behind it from the second run of a date on.
        day: counted from a Monday.
        git_sha, git_dirty: of stratbench's own code; of a file of benchmarks, of the code that it is of.
        workload_commits: reference of a user's workload → the repository that holds its file.
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
    """A figure from night to night.

    Attributes:
        nights: ids of nights, in the order of their days. days, values: of these.
        errors: standard errors of logarithms; not a number where there is none.
    """

    subject: Subject
    nights: IntArray
    days: IntArray
    values: FloatArray
    errors: FloatArray


def nights_where(connection: sqlite3.Connection, condition: str, *values: object) -> list[Night]:
    """Nights of which an SQL condition holds, or in an order that it asks for."""
    names = [field.name for field in dataclasses.fields(Night)]
    rows = connection.execute(f"SELECT {', '.join(names)} FROM night {condition}", values)  # noqa: S608 - a condition of our own
    return [_night_of(dict(zip(names, row, strict=True))) for row in rows]


def _night_of(columns: dict[str, Any]) -> Night:
    dirty, commits = columns["git_dirty"], json.loads(columns["workload_commits"] or "{}")
    repositories = {workload: Repository(**fields) for workload, fields in commits.items()}
    is_dirty = None if dirty is None else bool(dirty)
    return Night(**{**columns, "git_dirty": is_dirty, "workload_commits": repositories})


def written_commits(commits: Mapping[str, Repository]) -> str | None:
    """Commits of workloads as a night's row has them; None for none."""
    documents = {workload: dataclasses.asdict(repository) for workload, repository in commits.items()}
    return json.dumps(documents, sort_keys=True) if documents else None


def name_of(connection: sqlite3.Connection, day: int) -> str:
    """The name of a day's next night: its date, numbered from the second one on."""
    text = date_of(day).isoformat()
    n_same = len(nights_where(connection, "WHERE day = ?", day))
    return f"{text}.{n_same + 1}" if n_same else text


def insert_night(connection: sqlite3.Connection, new: NewNight, *, started_utc: str) -> int:
    """Write a night's own row; returns its id."""
    day = day_of(started_utc)
    row = {
        "name": name_of(connection, day),
        "started_utc": started_utc,
        "day": day,
        "experiment": new.experiment,
        "run": new.run,
        "run_dir": new.run_dir,
        "git_sha": new.git_sha,
        "git_dirty": new.git_dirty,
        "workload_commits": written_commits(new.workload_commits),
    }
    names, places = ", ".join(row), ", ".join("?" * len(row))
    cursor = connection.execute(f"INSERT INTO night ({names}) VALUES ({places})", tuple(row.values()))  # noqa: S608 - names of our own
    return int(cursor.lastrowid or 0)


def insert_figures(connection: sqlite3.Connection, night: int, new: NewNight) -> None:
    """Write the figures of a night, and the cases without one."""
    connection.executemany(
        "INSERT INTO figure (series, night, value, error, n) VALUES (?, ?, ?, ?, ?)",
        [(series_id(connection, f.subject), night, f.value, f.error, f.n) for f in new.figures],
    )
    connection.executemany(
        "INSERT INTO lost (night, case_id, workload, shape, strategy, status, message) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(night, x.case, x.workload, x.shape, x.strategy, x.status, x.message) for x in new.lost],
    )


def series_id(connection: sqlite3.Connection, subject: Subject) -> int:
    """The number of a series, which is written if need be."""
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


def subjects_of(connection: sqlite3.Connection) -> dict[int, Subject]:
    """Subjects of all series, by their numbers."""
    names = [field.name for field in dataclasses.fields(Subject)]
    rows = connection.execute(f"SELECT id, {SUBJECT_COLUMNS} FROM series")  # noqa: S608 - names of our own
    return {series: Subject(**dict(zip(names, values, strict=True))) for series, *values in rows}


def series_of(subject: Subject, figures: npt.NDArray[np.void]) -> Series:
    """A series from its rows: night, day, value and error of each, which is negative where there is none."""
    errors = figures["error"]
    return Series(
        subject=subject,
        nights=figures["night"].copy(),
        days=figures["day"].copy(),
        values=figures["value"].copy(),
        errors=np.where(errors < 0, np.nan, errors),
    )


RUNS = "runs"
Clock = Callable[[], datetime]
_CLOCKS_DIFFER = timedelta(minutes=10)
"""Largest lead that the clock of another machine may have."""
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
    """A history for this process alone, made if need be.

    Args:
        clock: says when it is, so that nights of later are refused; None for whoever means such nights.
    Raises:
        HistoryInUseError: another process has it. DiskFullError: it takes no more. HistoryError: it cannot be
            opened.
    """
    path = folder / DATABASE
    with named_errors(path), contextlib.ExitStack() as stack:
        stack.enter_context(locked(folder / LOCK))
        if not path.exists():
            require_begun(path)
        if os.path.lexists(folder / RUNS):
            make_folder(folder, RUNS)  # refuses a link, through which nights would be written
        connection = stack.enter_context(contextlib.closing(connected(path)))
        database.migrate(connection, version=database.VERSION)
        require_sound(connection, path)
        yield History(folder=folder, connection=connection, clock=clock)


@contextlib.contextmanager
def reading(folder: Path) -> Iterator[History]:
    """A history that is there, also while another process writes it.

    Raises:
        HistoryError: there is none, or it cannot be opened.
    """
    path = folder / DATABASE
    if not path.exists():
        require_begun(path)
        raise HistoryError(f"{folder} must hold a history, got none; `stratbench nightly run` begins one")
    with named_errors(path), contextlib.ExitStack() as stack:
        connection = stack.enter_context(contextlib.closing(connected(path, is_read=True)))
        version = database.version_of(connection)
        if version == database.VERSION:
            require_sound(connection, path)
            yield History(folder=folder, connection=connection)
            return
    # An older one becomes one of today's first.
    with writing(folder) as history:
        yield history


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """An open history.

    Attributes:
        folder: with the database, and run folders in `runs`.
        clock: as for `writing`.
    """

    folder: Path
    connection: sqlite3.Connection
    clock: Clock | None = None

    def add(self, new: NewNight) -> Night:
        """Write a night, all of it or nothing.

        Figures of a run that is there already are replaced: it may have been resumed since.

        Raises:
            HistoryError: it is later than the clock says. DiskFullError: there is no room for it.
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
        """Checksums of all nights, by their ids; nights older than checksums have none."""
        return dict(self.connection.execute("SELECT id, checksum FROM night"))

    def require_begun(self, started_utc: str) -> datetime:
        """Start of a night; one later than now is refused, since all later nights would come before it.

        Raises:
            HistoryError: it is later than the clock says, or on no date of the calendar.
        """
        try:
            started = datetime.fromisoformat(started_utc).astimezone(UTC)
        except (ValueError, OverflowError) as error:
            raise HistoryError(
                f"a night must have begun on a date of the calendar, got {started_utc!r:.60} ({error}); "
                "correct the date in what is imported"
            ) from None
        if self.clock is not None and started > (now := self.clock()) + _CLOCKS_DIFFER:
            raise HistoryError(
                f"a night must have begun by now, got {started:%Y-%m-%d %H:%M} UTC while the clock says "
                f"{now:%Y-%m-%d %H:%M} UTC; set the clock, or correct the date in what is imported"
            )
        return started

    def newest(self, experiment: str) -> Night | None:
        """The newest night of an experiment; None if there is none."""
        return next((night for night in reversed(self.nights()) if night.experiment == experiment), None)

    def holdings(self) -> str:
        """Counts of nights by experiment, in words."""
        counts = Counter(night.experiment for night in self.nights())
        texts = (f"{n} night{'' if n == 1 else 's'} of {name}" for name, n in sorted(counts.items()))
        return " and ".join(texts) or "no night"

    def nights(self) -> list[Night]:
        """All nights, the oldest first."""
        return nights_where(self.connection, "ORDER BY started_utc, id")

    def series(self, *, until: Night | None = None, n_days: int | None = None) -> list[Series]:
        """All series that have a figure.

        Args:
            until: the last night that counts, and whose experiment does.
            n_days: how many days before it count; None for all.
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
        subjects = subjects_of(self.connection)
        return [
            series_of(subjects[series], of_series)
            for series, of_series in zip(ids.tolist(), np.split(figures, starts[1:]), strict=True)
        ]

    def lost(self, night: Night) -> list[Lost]:
        """Cases without a figure in a night."""
        found = self.connection.execute(
            "SELECT case_id, workload, shape, strategy, status, message FROM lost WHERE night = ?",
            (night.id,),
        )
        names = ("case", "workload", "shape", "strategy", "status", "message")
        return [Lost(**dict(zip(names, row, strict=True))) for row in found]

    def acknowledge(self, case: str, *, until: Night, reason: str) -> None:
        """Note that what has changed of a case up to a night is known."""
        with needing_room(self.folder), self.connection:
            self.connection.execute("INSERT OR REPLACE INTO known VALUES (?, ?, ?)", (case, until.id, reason))

    def known(self) -> Mapping[str, tuple[int, str]]:
        """Case → id of the last night up to which its changes are known, and why."""
        found = self.connection.execute(
            "SELECT case_id, until_night, reason FROM known JOIN night ON night.id = until_night "
            "ORDER BY started_utc, night.id"
        )
        return {case: (night, reason) for case, night, reason in found}
