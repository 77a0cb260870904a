"""Whether a checkpoint is there is known before anything starts."""

from pathlib import Path

import pytest

from harness import pipeline
from harness.checkpoints import require
from harness.errors import UsageError
from harness.options import RunOptions
from harness.spec import resolve


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
