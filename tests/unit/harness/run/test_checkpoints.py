"""Missing checkpoints are reported before anything starts."""

from pathlib import Path

import pytest

from harness import pipeline
from harness.errors import CaseError, UsageError
from harness.experiment.load import resolve
from harness.requests import RunOptions
from harness.run.checkpoints import require, require_saved


def test_a_run_that_begins_with_no_checkpoint_costs_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    document = {"name": "x", "workloads": ["wide-mlp"], "strategies": ["single"]}
    spec = resolve({**document, "checkpoint": {"restore": str(tmp_path / "there")}})
    with pytest.raises(
        UsageError, match=r"^restore: must be a checkpoint, got .*there \(no such folder or prefix\)"
    ):
        pipeline.run(spec, RunOptions(out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_folder_without_a_checkpoint_is_told_apart_from_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no file `checkpoint` in it"):
        require(tmp_path)


@pytest.mark.parametrize("there", ["checkpoint", "model-7.index"])
def test_a_checkpoint_is_a_folder_or_a_prefix(tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_text("")
    require(tmp_path if there == "checkpoint" else tmp_path / "model-7")


def test_a_checkpoint_that_did_not_come_back_from_a_worker_fails_its_case(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match=r"has no checkpoint from worker 0") as caught:
        require_saved(tmp_path / "lost")
    assert (caught.value.kind, caught.value.stage) == ("checkpoint-lost", "checkpoint")
    (tmp_path / "checkpoint").touch()
    require_saved(tmp_path)


@pytest.mark.parametrize("path", [".", "/"])
def test_a_folder_without_a_name_is_a_folder_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="no file `checkpoint` in it"):
        require(Path(path))
