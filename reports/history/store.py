"""The history of nightly runs: a SQLite database and the run folders beside it.

A night is written in one transaction. Whatever ends the process, the history opens and has every night that
was written whole.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType

import numpy as np

from harness.contained_files import make_folder
from harness.records.facts.circumstances import Repository
from reports.history import schema
from reports.history.database import (
    HistoryError,
    connected,
    locked,
    named_errors,
    needing_room,
    require_begun,
)
from reports.history.figures import Figure, Lost
from reports.history.soundness import require_sound, seal
from reports.history.tables import (
    Night,
    Series,
    date_of,
    day_of,
    name_of,
    nights_where,
    series_id,
    series_of,
    subjects_of,
    written_commits,
)

__all__ = [
    "DATABASE",
    "LOCK",
    "RUNS",
    "Clock",
    "History",
    "Night",
    "Series",
    "date_of",
    "day_of",
    "reading",
    "writing",
]

DATABASE, LOCK, RUNS = "history.sqlite", "history.lock", "runs"
Clock = Callable[[], datetime]
_CLOCKS_DIFFER = timedelta(minutes=10)
"""By how much the clock of whoever made a run may be ahead."""
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
        schema.migrate(connection, version=schema.VERSION)
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
        raise HistoryError(f"{folder} must hold a history, got none; `stratbench nightly` begins one")
    with named_errors(path), contextlib.ExitStack() as stack:
        connection = stack.enter_context(contextlib.closing(connected(path, is_read=True)))
        version = schema.version_of(connection)
        if version == schema.VERSION:
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
        workload_commits: Mapping[str, Repository] = MappingProxyType({}),
    ) -> Night:
        """Write a night, all of it or nothing.

        Args:
            run: its id; a run that is there already is not written again.
        Raises:
            HistoryError: it is later than the clock says. DiskFullError: there is no room for it.
        """
        started_utc = self.require_begun(started_utc).isoformat()
        day = day_of(started_utc)
        with needing_room(self.folder), self.connection:
            known = nights_where(self.connection, "WHERE run = ?", run)
            if known:
                return known[0]
            values = (
                name_of(self.connection, day),
                started_utc,
                day,
                experiment,
                run,
                run_dir,
                git_sha,
                git_dirty,
                written_commits(workload_commits),
            )
            cursor = self.connection.execute(
                "INSERT INTO night (name, started_utc, day, experiment, run, run_dir, git_sha, git_dirty, "
                "workload_commits) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                values,
            )
            night = int(cursor.lastrowid or 0)
            self.connection.executemany(
                "INSERT INTO figure (series, night, value, error, n) VALUES (?, ?, ?, ?, ?)",
                [(series_id(self.connection, f.subject), night, f.value, f.error, f.n) for f in figures],
            )
            self.connection.executemany(
                "INSERT INTO lost (night, case_id, workload, shape, strategy, status, message) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                [(night, x.case, x.workload, x.shape, x.strategy, x.status, x.message) for x in lost],
            )
            seal(self.connection, night)
        (added,) = nights_where(self.connection, "WHERE id = ?", night)
        return added

    def require_begun(self, started_utc: str) -> datetime:
        """When a night began; one that is later than now would have all later ones judged before it.

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
