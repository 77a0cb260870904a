import json
import os
from pathlib import Path

import pytest

from harness.records.checksums import sealed
from harness.records.retention import RemovedRuns, remove_old_runs
from harness.records.run_layout import RUN_FILE
from harness.records.run_lock import hold


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    # Names do not tell which is older.
    for name, created in (("a", "2026-01-03"), ("b", "2026-01-01"), ("c", "2026-01-02")):
        (tmp_path / name / "cases").mkdir(parents=True)
        (tmp_path / name / "cases" / "file").touch()
        head = {"schema": 2, "run": name, "spec_hash": "", "created_utc": created}
        (tmp_path / name / RUN_FILE).write_text(json.dumps(sealed(head)))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").touch()
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("keep", "left"), [(0, []), (1, ["a"]), (2, ["a", "c"]), (3, ["a", "b", "c"]), (9, ["a", "b", "c"])]
)
def test_the_newest_stay_and_nobody_elses_folder_is_touched(runs: Path, keep: int, left: list[str]) -> None:
    removed = remove_old_runs(runs, keep)
    assert names(runs) == [*left, "notes"]
    assert [path.name for path in removed.folders] == [name for name in ("b", "c", "a") if name not in left]


def test_a_run_that_goes_on_stays(runs: Path) -> None:
    held = hold(runs / "b")
    try:
        assert [path.name for path in remove_old_runs(runs, 0).folders] == ["c", "a"]
    finally:
        os.close(held)
    assert (runs / "b" / "cases" / "file").exists()


def test_a_link_to_a_run_is_not_another_one(runs: Path) -> None:
    (runs / "latest").symlink_to(runs / "a")
    assert [path.name for path in remove_old_runs(runs, 1).folders] == ["b", "c"]
    assert (runs / "latest" / "cases" / "file").exists()


def test_no_folder_of_runs_is_no_error(tmp_path: Path) -> None:
    assert remove_old_runs(tmp_path / "runs", 1) == RemovedRuns()


def test_a_run_whose_age_is_damaged_stays_and_is_named(runs: Path) -> None:
    file = runs / "a" / RUN_FILE
    file.write_text(file.read_text().replace("2026", "2006"))
    removed = remove_old_runs(runs, 1)
    assert [path.name for path in removed.folders] == ["b"]
    assert names(runs) == ["a", "c", "notes"]
    (why,) = removed.undated
    assert why.startswith(f"{file}: checksum: must be ")
