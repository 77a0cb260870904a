"""Tables of a history as values: nights, series, and what these are of."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

import numpy as np
import numpy.typing as npt

from harness.records.facts.circumstances import Repository
from reports.history.figures import Subject
from reports.history.noise import FloatArray, IntArray

_A_MONDAY = date(1970, 1, 5).toordinal()
SUBJECT_COLUMNS = "case_id, workload, shape, strategy, comparison_key, lock_hash, metric, against"


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
        """What orders nights: an older one may be written later."""
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


def day_of(started_utc: str) -> int:
    """Days from a Monday to a moment as records write it."""
    return datetime.fromisoformat(started_utc).astimezone(UTC).toordinal() - _A_MONDAY


def date_of(day: int) -> date:
    """The date that so many days from a Monday lead to."""
    return date.fromordinal(day + _A_MONDAY)


def nights_where(connection: sqlite3.Connection, condition: str, *values: object) -> list[Night]:
    """Nights of which an SQL condition holds, or in an order that it asks for."""
    found = connection.execute(
        "SELECT id, name, started_utc, day, experiment, run, run_dir, git_sha, git_dirty, workload_commits "  # noqa: S608 - a condition of our own
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
            workload_commits=_read_commits(row[9]),
        )
        for row in found
    ]


def written_commits(commits: Mapping[str, Repository]) -> str | None:
    """Commits of workloads as a night's row has them; None for none."""
    documents = {workload: dataclasses.asdict(repository) for workload, repository in commits.items()}
    return json.dumps(documents, sort_keys=True) if documents else None


def _read_commits(text: str | None) -> Mapping[str, Repository]:
    return {workload: Repository(**found) for workload, found in json.loads(text or "{}").items()}


def name_of(connection: sqlite3.Connection, day: int) -> str:
    """The name of a day's next night: its date, numbered from the second one on."""
    text = date_of(day).isoformat()
    n_same = len(nights_where(connection, "WHERE day = ?", day))
    return f"{text}.{n_same + 1}" if n_same else text


def series_id(connection: sqlite3.Connection, subject: Subject) -> int:
    """The number of a series, which is written if need be."""
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
    connection.execute(
        f"INSERT INTO series ({SUBJECT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",  # noqa: S608 - names of our own
        values,
    )
    found = connection.execute(
        "SELECT id FROM series WHERE case_id = ? AND comparison_key = ? AND lock_hash = ? AND metric = ? "
        "AND against = ?",
        (values[0], *values[4:]),
    )
    return int(found.fetchone()[0])


def subjects_of(connection: sqlite3.Connection) -> dict[int, Subject]:
    """What all series are of, by their numbers."""
    rows = connection.execute(f"SELECT id, {SUBJECT_COLUMNS} FROM series")  # noqa: S608 - names of our own
    return {series: _subject_of(values) for series, *values in rows}


def _subject_of(values: Sequence[str]) -> Subject:
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
