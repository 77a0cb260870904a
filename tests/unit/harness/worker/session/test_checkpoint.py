"""Writing a checkpoint leaves the old one or the new one; reading says in one line what is wrong with one."""

import os
import resource
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from harness.errors import CaseError, UsageError
from harness.worker.session import checkpoint
from harness.worker.session.checkpoint import read_checkpoint, write_checkpoint

OLD = {"dense/kernel": np.arange(6.0, dtype=np.float32).reshape(2, 3), "seed": np.array([7, 0], np.uint32)}
NEW = {**OLD, "dense/kernel": OLD["dense/kernel"] + 1}


def values(folder: Path) -> dict[str, np.ndarray]:
    return dict(read_checkpoint(folder, OLD).values)


@pytest.fixture
def saved(tmp_path) -> Path:
    write_checkpoint(tmp_path / "kept", OLD, OLD, 3)
    return tmp_path / "kept"


def test_what_is_read_is_what_was_written(tmp_path):
    model = {**OLD, "half": np.ones((), ml_dtypes.bfloat16), "empty": np.zeros((0, 2))}
    added = {
        "seed@rank2": np.array([9, 1], np.uint32),
        "compressor/dense/kernel/residual@rank1": OLD["dense/kernel"],
    }
    write_checkpoint(tmp_path, {**model, **added}, model, 5)
    read = read_checkpoint(tmp_path, model)
    assert read.step == 5
    assert {name: (v.dtype, v.tobytes()) for name, v in read.values.items()} == {
        name: (v.dtype, v.tobytes()) for name, v in {**model, **added}.items()
    }
    names = {name for name, _ in tf.train.list_variables(str(tmp_path))}
    assert names - set(model) == {
        "seed@rank2",
        "stratbench/compressor/dense/kernel/residual@rank1",
        "stratbench/step",
    }


def test_a_newer_checkpoint_takes_the_place_of_the_older(saved):
    write_checkpoint(saved, NEW, OLD, 4)
    np.testing.assert_array_equal(values(saved)["dense/kernel"], NEW["dense/kernel"])
    assert read_checkpoint(saved, OLD).step == 4
    assert sorted(file.suffix for file in saved.iterdir()) == ["", ".data-00000-of-00001", ".index"]


def test_a_checkpoint_may_be_moved_and_is_found_by_its_prefix_too(saved, tmp_path):
    moved = saved.rename(tmp_path / "moved")
    np.testing.assert_array_equal(values(moved)["dense/kernel"], OLD["dense/kernel"])
    prefix = next(moved.glob("*.index")).with_suffix("")
    np.testing.assert_array_equal(values(prefix)["dense/kernel"], OLD["dense/kernel"])


@pytest.mark.parametrize("moment", ["fsync", "sync_directory", "write_text"])
def test_a_writer_that_is_killed_leaves_the_old_checkpoint_whole(saved, monkeypatch, moment):
    def killed(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(os if moment == "fsync" else checkpoint, moment, killed)
        with pytest.raises(SystemExit):
            write_checkpoint(saved, NEW, OLD, 4)
    assert len(list(saved.glob("*.index"))) == 2
    assert read_checkpoint(saved, OLD).step == 3
    np.testing.assert_array_equal(values(saved)["dense/kernel"], OLD["dense/kernel"])
    write_checkpoint(saved, NEW, OLD, 5)
    assert read_checkpoint(saved, OLD).step == 5
    assert len(list(saved.glob("*.index"))) == 1


def test_a_full_disk_leaves_the_old_checkpoint_and_nothing_else(saved):
    before = {file: file.read_bytes() for file in saved.iterdir()}
    large = {**NEW, "dense/kernel": np.random.default_rng(0).normal(size=(1 << 16,))}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, limits[1]))
    try:
        with pytest.raises(CaseError, match=r"kept: cannot be written: .*; make room") as failure:
            write_checkpoint(saved, large, OLD, 4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (failure.value.kind, failure.value.stage) == ("checkpoint-unwritable", "checkpoint")
    assert {file: file.read_bytes() for file in saved.iterdir()} == before


def test_a_folder_that_cannot_be_made_is_told_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CaseError, match="cannot be written: Not a directory") as failure:
        write_checkpoint(tmp_path / "file" / "kept", OLD, OLD, 1)
    assert "\n" not in str(failure.value)


def refused(path: Path, model: dict[str, np.ndarray] = OLD) -> str:
    with pytest.raises(UsageError) as failure:
        read_checkpoint(path, model)
    assert failure.value.field == "restore"
    assert "\n" not in str(failure.value)
    return str(failure.value)


def test_no_checkpoint_is_told_in_one_line(tmp_path):
    assert "must be a TensorFlow checkpoint, got" in refused(tmp_path)
    assert "must be a TensorFlow checkpoint, got" in refused(tmp_path / "nowhere")


def test_a_half_written_checkpoint_is_told_in_one_line(saved):
    data = next(saved.glob("*.data-*"))
    data.write_bytes(data.read_bytes()[:10])
    assert "must be whole, got" in refused(saved)
    data.unlink()
    assert "must be whole, got" in refused(saved)
    index = next(saved.glob("*.index"))
    index.write_bytes(index.read_bytes()[:20])
    assert "must be a TensorFlow checkpoint, got" in refused(saved)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            {**OLD, "dense/kernel": np.zeros((2, 4), np.float32)},
            "another model's: variable 'dense/kernel' must be float32[2, 4], got float32[2, 3]; restore it",
        ),
        ({**OLD, "seed": np.zeros(2, np.int64)}, "variable 'seed' must be int64[2], got uint32[2]"),
        ({**OLD, "dense/bias": np.zeros(3)}, "variable 'dense/bias' of the workload is missing"),
        ({"seed": OLD["seed"]}, "its variables must be the workload's, got 'dense/kernel'"),
    ],
)
def test_another_model_s_checkpoint_is_refused_by_the_first_variable(saved, model, message):
    assert message in refused(saved, model)


def test_a_checkpoint_of_objects_is_refused_with_the_way_out(tmp_path):
    path = tf.train.Checkpoint(kernel=tf.Variable(OLD["dense/kernel"])).write(str(tmp_path / "objects"))
    assert "got one of tf.train.Checkpoint, which holds objects; write it by name" in refused(Path(path))
