"""Values read back from a run folder."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from open_folders import EXPERIMENT, made_record, opened

from harness.canonical import canonical_hash
from harness.errors import StoreError
from harness.records.run_folder import RunFolder
from harness.records.steps_file import Steps
from harness.records.stored_run import load_run


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    with opened(tmp_path / "run") as folder:
        yield folder


def test_a_run_folder_holds_what_is_needed_to_read_it_back(run: RunFolder) -> None:
    run.append(made_record())
    stored = load_run(run.path)
    assert stored.run == run.run
    assert stored.spec_hash == canonical_hash(EXPERIMENT)
    assert stored.experiment == EXPERIMENT == yaml.safe_load((run.path / "experiment.yaml").read_text())
    assert stored.environment == {"machine": {}}
    assert stored.records == (made_record(run=run.run),)
    assert not stored.torn


def test_what_is_not_a_run_folder_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such folder"):
        load_run(tmp_path / "absent")
    with pytest.raises(StoreError, match=r"no run\.json in it"):
        load_run(tmp_path)


def test_steps_survive_their_file(run: RunFolder) -> None:
    steps = Steps(
        worker=np.array([0, 0, 1, 1], np.int32),
        step=np.array([0, 1, 0, 1], np.int32),
        start_s=np.array([0.0, 1.0, 0.1, 1.1]),
        end_s=np.array([0.9, 1.9, 1.0, 2.0]),
        loss=np.array([2.0, np.nan, 1.5, 1.0]),
        warmup=np.array([True, False, True, False]),
        window=np.array([-1, 0, -1, 0], np.int32),
    )
    run.append(made_record())
    path = run.write_steps("c-1", 0, steps)
    assert path == run.path / "cases" / "c-1" / "0" / "steps.parquet"
    stored = load_run(run.path)
    again = stored.steps(stored.records[0])
    assert again is not None
    for field in dataclasses.fields(Steps):
        np.testing.assert_array_equal(getattr(again, field.name), getattr(steps, field.name))


def test_a_record_without_steps_has_none(run: RunFolder) -> None:
    run.append(made_record())
    stored = load_run(run.path)
    assert stored.steps(stored.records[0]) is None


def test_a_file_that_holds_no_steps_is_an_error(run: RunFolder) -> None:
    run.append(made_record())
    (run.repeat_dir("c-1", 0) / "steps.parquet").write_text("x")
    stored = load_run(run.path)
    with pytest.raises(StoreError, match=r"steps\.parquet must hold steps"):
        stored.steps(stored.records[0])
