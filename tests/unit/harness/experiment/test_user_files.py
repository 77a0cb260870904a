"""Which folders workers are given for the files that a user names."""

from pathlib import Path

import pytest

from harness.experiment.cases import expand, folders_of_users
from harness.experiment.load import resolve


def folders(workload: str, **sections: object) -> tuple[Path, ...]:
    spec = resolve({"name": "x", "workloads": [workload], "strategies": ["single"], **sections})
    return folders_of_users(expand(spec), spec)


@pytest.fixture
def current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, beside one that holds a user's file."""
    folder = tmp_path / "project"
    folder.mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.py").write_text("FACTOR = 1\n")
    monkeypatch.chdir(folder)
    return folder


def test_a_file_behind_a_link_is_where_it_is_named_and_where_it_lies(current: Path) -> None:
    (current / "models").symlink_to(current.parent / "data")
    assert folders("models/mine.py:Model") == (current.parent / "data", current / "models")


def test_folders_above_the_current_one_are_named_from_the_root_on(current: Path) -> None:
    (current.parent / "checkpoint").mkdir()
    named = folders("../data/mine.py:Model", checkpoint={"restore": "../checkpoint"})
    assert named == (current.parent / "checkpoint", current.parent / "data")
