import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness.records.checksums import sealed
from harness.records.retention import RemovedRuns, remove_old_runs
from harness.records.run_layout import RUN_FILE, default_name
from harness.records.run_lock import hold

A, B, C = (default_name(name, datetime(2026, 1, 1, tzinfo=UTC)) for name in ("a", "b", "c"))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    # Names do not tell which is older. A person has named one, the oldest of all.
    for name, created in ((A, "2026-01-03"), (B, "2026-01-01"), (C, "2026-01-02"), ("mine", "2025-01-01")):
        (tmp_path / name / "cases").mkdir(parents=True)
        (tmp_path / name / "cases" / "file").touch()
        head = {"schema": 2, "run": name, "spec_hash": "", "created_utc": created}
        (tmp_path / name / RUN_FILE).write_text(json.dumps(sealed(head)))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").touch()
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(("keep", "left"), [(0, []), (1, [A]), (2, [A, C]), (3, [A, B, C]), (9, [A, B, C])])
def test_the_newest_stay_and_nobody_elses_folder_is_touched(runs: Path, keep: int, left: list[str]) -> None:
    files = sorted(runs.rglob("*"))
    would = remove_old_runs(runs, keep, dry_run=True)
    assert sorted(runs.rglob("*")) == files
    assert names(runs) == [A, B, C, "mine", "notes"]
    removed = remove_old_runs(runs, keep)
    assert removed == would
    assert names(runs) == [*left, "mine", "notes"]
    assert [path.name for path in removed.folders] == [name for name in (B, C, A) if name not in left]


def test_a_run_that_goes_on_stays(runs: Path) -> None:
    held = hold(runs / B)
    try:
        would = remove_old_runs(runs, 0, dry_run=True)
        assert [path.name for path in would.folders] == [C, A]
        assert remove_old_runs(runs, 0) == would
    finally:
        os.close(held)
    assert (runs / B / "cases" / "file").exists()


def test_a_link_to_a_run_is_not_another_one(runs: Path) -> None:
    (runs / "latest").symlink_to(runs / A)
    assert [path.name for path in remove_old_runs(runs, 1).folders] == [B, C]
    assert (runs / "latest" / "cases" / "file").exists()


def test_no_folder_of_runs_is_no_error(tmp_path: Path) -> None:
    assert remove_old_runs(tmp_path / "runs", 1) == RemovedRuns()


def test_a_run_whose_age_is_damaged_stays_and_is_named(runs: Path) -> None:
    file = runs / A / RUN_FILE
    file.write_text(file.read_text().replace("2026", "2006"))
    removed = remove_old_runs(runs, 1)
    assert [path.name for path in removed.folders] == [B]
    assert names(runs) == [A, C, "mine", "notes"]
    (why,) = removed.undated
    assert why.startswith(f"{file}: checksum: must be ")
