"""The history of nightly runs: a SQLite database and the run folders beside it.

A night is written in one transaction. Whatever ends the process, the history opens and has every night that
was written whole.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from reports.history import schema
from reports.history.database import HistoryError, connected, locked
from reports.history.figures import Figure, Lost, Subject
from reports.history.noise import FloatArray, IntArray

DATABASE, LOCK, RUNS = "history.sqlite", "history.lock", "runs"
_A_MONDAY = date(1970, 1, 5).toordinal()
_FIGURE = np.dtype(
    [
        ("series", np.int64),
        ("night", np.int64),
        ("day", np.int64),
        ("value", np.float64),
        ("error", np.float64),
    ]
)
_SUBJECT = "case_id, workload, shape, strategy, comparison_key, lock_hash, metric, against"


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """A run of the history.

    Attributes:
        name: its date, with a number behind it from the second run of a date on.
        day: counted from a Monday.
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


def day_of(started_utc: str) -> int:
    """Days from a Monday to a moment as records write it."""
    return datetime.fromisoformat(started_utc).astimezone(UTC).toordinal() - _A_MONDAY


def date_of(day: int) -> date:
    """The date that so many days from a Monday lead to."""
    return date.fromordinal(day + _A_MONDAY)


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[History]:
    """A history for this process alone, made if need be.

    Raises:
        HistoryInUseError: another process has it. HistoryError: it cannot be opened.
    """
    with locked(folder / LOCK):
        connection = connected(folder / DATABASE)
        try:
            schema.migrate(connection)
            yield History(folder=folder, connection=connection)
        finally:
            connection.close()


@contextlib.contextmanager
def reading(folder: Path) -> Iterator[History]:
    """A history that is there, also while another process writes it.

    Raises:
        HistoryError: there is none, or it cannot be opened.
    """
    path = folder / DATABASE
    if not path.is_file():
        raise HistoryError(f"{folder} must hold a history, got none; `stratbench nightly` begins one")
    connection = connected(path, is_read=True)
    try:
        version = schema.version_of(connection)
        if version == schema.VERSION:
            yield History(folder=folder, connection=connection)
            return
    finally:
        connection.close()
    # An older one becomes one of today's first.
    with writing(folder) as history:
        yield history


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """An open history.

    Attributes:
        folder: with the database, and run folders in `runs`.
    """

    folder: Path
    connection: sqlite3.Connection

    def add(
        self,
        figures: Sequence[Figure],
        lost: Sequence[Lost],
        *,
        started_utc: str,
        experiment: str,
        run: str,
        run_dir: str,
        git_sha: str | None = None,
        git_dirty: bool | None = None,
    ) -> Night:
        """Write a night, all of it or nothing.

        Args:
            run: its id; a run that is there already is not written again.
        """
        started_utc = datetime.fromisoformat(started_utc).astimezone(UTC).isoformat()
        day = day_of(started_utc)
        with self.connection:
            known = self._nights("WHERE run = ?", run)
            if known:
                return known[0]
            values = (self._name(day), started_utc, day, experiment, run, run_dir, git_sha, git_dirty)
            cursor = self.connection.execute(
                "INSERT INTO night (name, started_utc, day, experiment, run, run_dir, git_sha, git_dirty) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                values,
            )
            night = cursor.lastrowid
            self.connection.executemany(
                "INSERT INTO figure (series, night, value, error, n) VALUES (?, ?, ?, ?, ?)",
                [(self._series_id(f.subject), night, f.value, f.error, f.n) for f in figures],
            )
            self.connection.executemany(
                "INSERT INTO lost (night, case_id, workload, shape, strategy, status, message) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                [(night, x.case, x.workload, x.shape, x.strategy, x.status, x.message) for x in lost],
            )
        (added,) = self._nights("WHERE id = ?", night)
        return added

    def nights(self) -> list[Night]:
        """All nights, the oldest first."""
        return self._nights("ORDER BY started_utc, id")

    def series(self, *, until: Night | None = None, n_days: int | None = None) -> list[Series]:
        """All series that have a figure.

        Args:
            until: the last night that counts, and whose experiment does.
            n_days: how many days before it count; None for all.
        """
        last = (until.started_utc, until.id) if until else ("9999", 2**62)
        first = until.day - n_days if until and n_days is not None else -(2**62)
        experiment = until.experiment if until else None
        rows = self.connection.execute(
            "SELECT series, night.id, day, value, coalesce(error, -1) FROM figure "
            "JOIN night ON night.id = night "
            "WHERE (started_utc, night.id) <= (?, ?) AND day > ? AND experiment = coalesce(?, experiment)",
            (*last, first, experiment),
        )
        figures = np.fromiter(rows, dtype=_FIGURE)
        order = {night.id: place for place, night in enumerate(self.nights())}
        places = np.array([order[night] for night in figures["night"].tolist()], dtype=np.int64)
        figures = figures[np.lexsort((places, figures["series"]))]
        ids, starts = np.unique(figures["series"], return_index=True)
        subjects = self._subjects()
        return [
            _series(subjects[series], of_series)
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
        with self.connection:
            self.connection.execute("INSERT OR REPLACE INTO known VALUES (?, ?, ?)", (case, until.id, reason))

    def known(self) -> Mapping[str, tuple[int, str]]:
        """Case → id of the last night up to which its changes are known, and why."""
        found = self.connection.execute("SELECT case_id, until_night, reason FROM known ORDER BY until_night")
        return {case: (night, reason) for case, night, reason in found}

    def _subjects(self) -> Mapping[int, Subject]:
        rows = self.connection.execute(f"SELECT id, {_SUBJECT} FROM series")  # noqa: S608 - names of our own
        return {series: _subject(values) for series, *values in rows}

    def _nights(self, condition: str, *values: object) -> list[Night]:
        found = self.connection.execute(
            "SELECT id, name, started_utc, day, experiment, run, run_dir, git_sha, git_dirty "  # noqa: S608 - as above
            f"FROM night {condition}",
            values,
        )
        return [
            Night(
                id=row[0],
                name=row[1],
                started_utc=row[2],
                day=row[3],
                experiment=row[4],
                run=row[5],
                run_dir=row[6],
                git_sha=row[7],
                git_dirty=None if row[8] is None else bool(row[8]),
            )
            for row in found
        ]

    def _name(self, day: int) -> str:
        """The date, numbered from its second night on."""
        text = date_of(day).isoformat()
        n_same = len(self._nights("WHERE day = ?", day))
        return f"{text}.{n_same + 1}" if n_same else text

    def _series_id(self, subject: Subject) -> int:
        values = (
            subject.case,
            subject.workload,
            subject.shape,
            subject.strategy,
            subject.comparison_key,
            subject.lock_hash,
            subject.metric,
            subject.against,
        )
        self.connection.execute(
            f"INSERT INTO series ({_SUBJECT}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",  # noqa: S608 - as above
            values,
        )
        found = self.connection.execute(
            "SELECT id FROM series WHERE case_id = ? AND comparison_key = ? AND lock_hash = ? AND metric = ? "
            "AND against = ?",
            (values[0], *values[4:]),
        )
        return int(found.fetchone()[0])


def _subject(values: Sequence[str]) -> Subject:
    case, workload, shape, strategy, comparison_key, lock_hash, metric, against = values
    return Subject(
        case=case,
        workload=workload,
        shape=shape,
        strategy=strategy,
        comparison_key=comparison_key,
        lock_hash=lock_hash,
        metric=metric,
        against=against,
    )


def _series(subject: Subject, figures: npt.NDArray[np.void]) -> Series:
    errors = figures["error"]
    return Series(
        subject=subject,
        nights=figures["night"].copy(),
        days=figures["day"].copy(),
        values=figures["value"].copy(),
        errors=np.where(errors < 0, np.nan, errors),
    )
