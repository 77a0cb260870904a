"""A history that is not as it was written: named when it is opened, wherever the damage is."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from harness.errors import StoreError
from reports.history import database
from reports.history.database import DATABASE, LOCK, HistoryError, HistoryInUseError
from reports.history.figures import Figure, NewNight, Subject
from reports.history.store import reading, writing

BEGAN = datetime(2026, 3, 2, 2, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with writing(tmp_path) as history:
        for number in range(40):
            subjects = [
                Subject(
                    case=f"case-{k}",
                    workload="w",
                    shape="2 workers",
                    strategy="ps",
                    comparison_key="k",
                    lock_hash="l",
                    metric="rate",
                )
                for k in range(20)
            ]
            history.add(
                NewNight(
                    figures=[
                        Figure(subject=subject, value=100.0 + number, error=0.01, n=3) for subject in subjects
                    ],
                    lost=(),
                    started_utc=(BEGAN + timedelta(days=number)).isoformat(),
                    experiment="x",
                    run=f"run-{number}",
                    run_dir="",
                )
            )
    return tmp_path


def test_garbage_anywhere_is_named_or_lies_where_nothing_is(store: Path) -> None:
    path = store / DATABASE
    whole, undamaged, n_named = path.read_bytes(), _held(store), 0
    for start in range(0, len(whole), len(whole) // 60):
        path.write_bytes(whole[:start] + bytes(range(64)) + whole[start + 64 :])
        try:
            assert _held(store) == undamaged
        except HistoryError as error:
            assert str(path) in str(error)  # noqa: PT017 - damage to free space is none
            n_named += 1
    assert n_named >= 20


def _held(store: Path) -> object:
    with reading(store) as history:
        series = [
            (series_item.subject, series_item.values.tolist(), series_item.errors.tolist())
            for series_item in history.series()
        ]
        return history.nights(), series


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("UPDATE figure SET value = 99 WHERE night = 3 AND series = 2", "night 2026-03-04: its figures"),
        ("UPDATE figure SET n = 4 WHERE night = 3 AND series = 2", "night 2026-03-04: its figures"),
        ("DELETE FROM figure WHERE night = 3 AND series = 2", "night 2026-03-04: its figures"),
        ("UPDATE night SET git_sha = 'x' WHERE id = 3", "night 2026-03-04: its figures"),
        ("DELETE FROM night WHERE id = 3", "figure"),
        ("UPDATE night SET checksum = NULL, started_utc = '2026-02-30' WHERE id = 3", "its date: "),
        ("UPDATE night SET checksum = NULL, day = 1 WHERE id = 3", "stored under another day"),
        (
            "UPDATE night SET checksum = NULL; UPDATE figure SET value = 'x' WHERE night = 3",
            "rate of case-0 is 'x'",
        ),
        ("DROP TABLE lost", "its tables are not those of version 3"),
        ("ALTER TABLE night DROP COLUMN run_dir", "its tables are not those of version 3"),
        ("PRAGMA user_version = 2", "its tables are not those of version 2"),
        ("UPDATE night SET checksum = NULL, name = CAST(x'ff' AS TEXT) WHERE id = 3", "Could not decode"),
        ("UPDATE night SET checksum = NULL; UPDATE figure SET value = 9e999 WHERE night = 3", "is inf with"),
    ],
)
def test_what_was_edited_since_is_named(store: Path, statement: str, why: str) -> None:
    with closing(sqlite3.connect(store / DATABASE)) as connection:
        connection.executescript(statement)
    for opening in (reading, writing):
        with pytest.raises(HistoryError, match=rf"{DATABASE} must be intact, got damage: .*{why}"):
            opening(store).__enter__()


def test_a_history_that_was_emptied_beside_its_page_is_not_begun_anew(store: Path) -> None:
    (store / "trend.html").touch()
    for damage in (lambda path: os.truncate(path, 0), Path.unlink):
        damage(store / DATABASE)
        for opening in (reading, writing):
            with pytest.raises(
                HistoryError,
                match=f"{DATABASE} must contain the nights of trend.html.* to start a new history",
            ):
                opening(store).__enter__()
    (store / "trend.html").unlink()
    with writing(store) as history:
        assert not history.nights()


def test_a_mistake_of_a_program_is_no_damage(store: Path) -> None:
    with pytest.raises(sqlite3.OperationalError, match="no such column"), writing(store) as history:
        history.connection.execute("SELECT rat FROM figure")


def test_a_file_that_cannot_be_written_names_the_way_out(store: Path) -> None:
    with (
        pytest.raises(HistoryError, match=r"must be readable and writable, got .*; check its permissions"),
        reading(store) as history,
    ):
        history.connection.execute("DELETE FROM figure")


def test_a_history_that_another_program_locks_is_named(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_BUSY_S", 0.0)
    with closing(sqlite3.connect(store / DATABASE, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("BEGIN EXCLUSIVE")
        for opening in (reading, writing):
            with pytest.raises(HistoryInUseError, match=f"{DATABASE} is locked by another program"):
                opening(store).__enter__()


@pytest.mark.parametrize("name", [DATABASE, LOCK, f"{DATABASE}-wal", f"{DATABASE}-journal"])
@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_no_link_is_followed(
    store: Path, name: str, link: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.write_text("kept")
    (store / name).unlink(missing_ok=True)
    link(store / name, outside)
    with pytest.raises(StoreError, match=f"{name} must be a file or folder of its own"):
        writing(store).__enter__()
    assert outside.read_text() == "kept"


@pytest.mark.parametrize("date", ["2026-02-30T00:00:00+00:00", "yesterday", "0001-01-01T00:00:00+14:00"])
def test_a_night_begins_on_a_date_of_the_calendar(store: Path, date: str) -> None:
    with writing(store) as history, pytest.raises(HistoryError, match="on a valid date, got"):
        history.require_begun(date)
