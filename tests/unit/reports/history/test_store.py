"""The history keeps every night that was written whole, whatever ends the process."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.records.conditions import Repository
from reports.history import database
from reports.history.database import DATABASE, HistoryError, HistoryInUseError
from reports.history.figures import Figure, Lost, NewNight, Subject
from reports.history.store import History, Night, reading, writing

SUBJECT = Subject(
    case="ps-1",
    workload="w",
    shape="2 workers",
    strategy="ps",
    comparison_key="k",
    lock_hash="l",
    metric="rate",
)
COMMITS_SINCE = 2
"""Version of tables from which on nights have commits of workloads."""
LOST = Lost(case="x-1", workload="w", shape="s", strategy="x", status="failed", message="worker-died: gone")


def figure(value: float = 100.0, error: float | None = 0.01, **of: str) -> Figure:
    return Figure(subject=replace(SUBJECT, **of), value=value, error=error, n=3)  # type: ignore[arg-type]


def add(history: History, day: int, *figures: Figure, run: str | None = None) -> Night:
    return history.add(
        NewNight(
            figures=figures or (figure(100.0 + day),),
            lost=(LOST,),
            started_utc=f"2026-03-{day:02d}T02:00:00+00:00",
            experiment="x",
            run=run or f"run-{day}",
            run_dir=f"runs/{day}",
            git_sha=f"sha{day}",
            git_dirty=False,
        )
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    with writing(tmp_path / "store") as history:
        first = add(history, 2)
        add(history, 3, figure(7.0, None), figure(1.5, metric="ratio", against="single"))
    with reading(tmp_path / "store") as history:
        assert [night.name for night in history.nights()] == ["2026-03-02", "2026-03-03"]
        rate, ratio = history.series()
        assert rate.values.tolist() == [102.0, 7.0]
        assert (rate.days % 7).tolist() == [0, 1]  # a Monday and a Tuesday
        assert rate.errors[0] == 0.01
        assert rate.errors[1] != rate.errors[1]
        assert (ratio.subject.against, len(ratio.values)) == ("single", 1)
        assert history.lost(first) == [LOST]
        assert history.nights()[0].git_sha == "sha2"


def test_a_second_run_of_a_date_has_a_number_and_the_same_run_is_there_once(tmp_path: Path) -> None:
    with writing(tmp_path) as history:
        add(history, 2)
        assert add(history, 2, run="other").name == "2026-03-02.2"
        assert add(history, 2, run="other").name == "2026-03-02.2"
        assert len(history.nights()) == 2


def test_nights_are_in_the_order_in_which_they_began(tmp_path: Path) -> None:
    with writing(tmp_path) as history:
        add(history, 5)
        early = add(history, 3)
        offset = history.add(
            NewNight(
                figures=(figure(1.0),),
                lost=(),
                started_utc="2026-03-05T03:30:00+02:00",
                experiment="x",
                run="o",
                run_dir="",
            )
        )
        assert [night.day for night in history.nights()] == [early.day, offset.day, offset.day]
        (series,) = history.series()
        assert series.values.tolist() == [103.0, 1.0, 105.0]


def test_series_of_another_experiment_are_not_those_of_a_night(tmp_path: Path) -> None:
    with writing(tmp_path) as history:
        add(history, 2, figure(metric="ratio"))
        other = history.add(
            NewNight(
                figures=(figure(),),
                lost=(),
                started_utc="2026-03-03T02:00:00Z",
                experiment="y",
                run="y",
                run_dir="",
            )
        )
        assert [series.subject.metric for series in history.series(until=other)] == ["rate"]


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_what_has_no_logarithm_is_no_figure(value: float) -> None:
    with pytest.raises(ValueError, match="rate must be positive and finite"):
        figure(value)


def test_another_database_is_left_as_it_is(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / DATABASE)
    connection.execute("CREATE TABLE mine (x)")
    connection.commit()
    connection.close()
    before = (tmp_path / DATABASE).read_bytes()
    for opening in (reading, writing):
        with pytest.raises(HistoryError, match="must be a history, got another database"):
            opening(tmp_path).__enter__()
    assert (tmp_path / DATABASE).read_bytes() == before


def test_another_machine_or_lock_file_begins_a_series(tmp_path: Path) -> None:
    with writing(tmp_path) as history:
        add(history, 2)
        add(history, 3, figure(comparison_key="other"))
        add(history, 4, figure(lock_hash="other"))
        assert [len(series.values) for series in history.series()] == [1, 1, 1]


def test_only_nights_up_to_one_count(tmp_path: Path) -> None:
    with writing(tmp_path) as history:
        nights = [add(history, day) for day in (2, 5, 9)]
        (series,) = history.series(until=nights[1])
        assert series.nights.tolist() == [nights[0].id, nights[1].id]
        (series,) = history.series(until=nights[2], n_days=5)
        assert series.nights.tolist() == [nights[1].id, nights[2].id]


def test_a_second_writer_is_told_who_is_first(tmp_path: Path) -> None:
    with writing(tmp_path), pytest.raises(HistoryInUseError) as caught, writing(tmp_path):
        pass
    assert f"in use by process {os.getpid()} since 20" in str(caught.value)
    assert caught.value.exit_status == 3
    with writing(tmp_path) as history:
        assert history.nights() == []


def test_a_history_is_read_while_it_is_written(tmp_path: Path) -> None:
    with writing(tmp_path) as history:
        add(history, 2)
        with reading(tmp_path) as other:
            assert len(other.nights()) == 1


def test_a_history_that_was_read_leaves_no_files_beside_it(tmp_path: Path) -> None:
    with writing(tmp_path) as history:
        add(history, 2)
    with reading(tmp_path) as history:
        assert len(history.nights()) == 1
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            history.connection.execute("DELETE FROM night")
    assert not list(tmp_path.glob(f"{DATABASE}-*"))


def test_a_folder_without_a_history_and_a_file_that_is_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="must hold a history, got none"), reading(tmp_path):
        pass
    (tmp_path / DATABASE).write_text("no database at all, but long enough to be looked at" * 20)
    with (
        pytest.raises(HistoryError, match="must be a history, got file is not a database"),
        writing(tmp_path),
    ):
        pass
    with pytest.raises(HistoryError, match="must be a history"), reading(tmp_path):
        pass


def test_a_newer_history_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    with writing(tmp_path) as history:
        add(history, 2)
        history.connection.execute(f"PRAGMA user_version = {database.VERSION + 1}")
    for opening in (reading, writing):
        with pytest.raises(
            HistoryError, match=f"version {database.VERSION} at most, got {database.VERSION + 1}"
        ):
            opening(tmp_path).__enter__()
    connection = sqlite3.connect(tmp_path / DATABASE)
    assert connection.execute("SELECT count(*) FROM night").fetchone() == (1,)
    connection.close()


def test_an_older_history_becomes_one_of_today(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of version 1, as they are on disks, under a schema that has gone on."""
    with writing(tmp_path) as history:
        add(history, 2)
    further = (*database.MIGRATIONS, "ALTER TABLE night ADD COLUMN note TEXT;")
    monkeypatch.setattr(database, "MIGRATIONS", further)
    monkeypatch.setattr(database, "VERSION", len(further))
    with reading(tmp_path) as history:
        assert [night.name for night in history.nights()] == ["2026-03-02"]
        assert history.connection.execute("SELECT note FROM night").fetchone() == (None,)


@pytest.mark.parametrize("version", range(1, database.VERSION + 1))
def test_a_history_of_each_version_opens_with_all_that_it_has(tmp_path: Path, version: int) -> None:
    golden = Path(__file__).parents[3] / "golden" / "history" / f"version-{version}.sql"
    connection = sqlite3.connect(tmp_path / DATABASE)
    connection.executescript(golden.read_text())
    connection.close()
    with reading(tmp_path) as history:
        nights = history.nights()
        assert [(night.name, night.git_sha) for night in nights] == [
            ("2026-03-02", "sha2"),
            ("2026-03-03", "sha3"),
        ]
        if version >= COMMITS_SINCE:
            models = Repository(name="models", git_sha="sha9", git_dirty=True)
            assert [night.workload_commits for night in nights] == [{}, {"model.py:net": models}]
        assert [(s.subject.metric, s.values.tolist()) for s in history.series()] == [
            ("rate", [101.5, 99.0]),
            ("ratio", [1.25]),
        ]
        assert history.lost(nights[1]) == [LOST]
        assert list(history.known()) == ["ps"]


def test_what_is_known_is_kept_with_its_reason(tmp_path: Path) -> None:
    with writing(tmp_path) as history:
        night = add(history, 2)
        history.acknowledge("ps", until=night, reason="a new lock")
    with reading(tmp_path) as history:
        assert history.known() == {"ps": (night.id, "a new lock")}


WRITER = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from test_store import add, figure, writing

with writing(Path(sys.argv[1])) as history:
    for k in range(len(history.nights()), 10_000):
        add(history, 2 + k % 20, *[figure(metric=f"m{j}") for j in range(200)], run=f"run-{k}")
        print(k, flush=True)
"""


def test_killed_at_any_moment_it_keeps_every_night_that_was_told(tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    rng = random.Random(0)
    n_told = 0
    for _ in range(12):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), here, str(Path(__file__).parents[4])],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        for _ in range(rng.randrange(1, 15)):
            n_told = int(writer.stdout.readline()) + 1
        writer.send_signal(signal.SIGKILL)
        rest = writer.communicate()[0].splitlines()
        whole = [line for line in rest if line.isdigit()]
        n_told = int(whole[-1]) + 1 if whole else n_told
        with reading(tmp_path) as history:
            nights = history.nights()
            assert len(nights) >= n_told
            counts = history.connection.execute("SELECT count(*) FROM figure GROUP BY night").fetchall()
            assert counts == [(200,)] * len(nights)


def test_figures_of_a_run_that_was_resumed_are_replaced_and_its_night_stays(tmp_path: Path) -> None:
    began = "2026-03-02T02:00:00+00:00"
    new = NewNight(figures=(figure(1.0),), lost=(), started_utc=began, experiment="x", run="r", run_dir="")
    with writing(tmp_path) as history:
        first = history.add(new)
        written = history.checksums()
        assert (history.add(new), history.checksums()) == (first, written)
        assert history.add(replace(new, figures=(figure(2.0), figure(3.0, metric="ratio")))) == first
        assert history.checksums() != written
    with reading(tmp_path) as history:
        assert sorted(value for series in history.series() for value in series.values) == [2.0, 3.0]
