"""Examples of real data, as workloads read them: shapes, order, and records that are damaged."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workloads.data import examples
from workloads.data.examples import WorkerShare, examples_of, worker_batches
from workloads.protocol import WorkloadError
from workloads.registry import resolve

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")


WORDS = "the quick brown fox jumps over the lazy dog and runs away\n"


def first_batches(name: str, params: dict[str, object], n: int = 3) -> list[list[np.ndarray]]:
    workload = resolve(name, {"size": "tiny", **params} if not name.startswith("keras:") else params)
    batches = examples_of(workload, seed=0).batches(4)
    return [next(batches) for _ in range(n)]


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Two files of six images each, whose colour is their label's."""
    for number in range(2):
        with tf.io.TFRecordWriter(str(tmp_path / f"train-{number}")) as writer:
            for k in range(6):
                label = 1 + (number + k) % 3
                image = np.full((20 + 4 * k, 30, 3), 60 * label, np.uint8)
                feature = {
                    "image/encoded": tf.train.Feature(
                        bytes_list=tf.train.BytesList(value=[tf.io.encode_png(image).numpy()])
                    ),
                    "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())
    return tmp_path


def test_images_of_records(records: Path) -> None:
    params = {"data": str(records), "input": 32, "classes": 3}
    batches = first_batches("resnet50", params, 4)
    labels = np.concatenate([batch[1] for batch in batches])
    images = np.concatenate([batch[0] for batch in batches])
    assert (images.shape, images.dtype, labels.dtype) == ((16, 32, 32, 3), np.float32, np.int32)
    assert set(labels) == {0, 1, 2}
    for image, label in zip(images, labels, strict=True):
        np.testing.assert_allclose(image[..., 0], (60 * (label + 1) - 123.68) / 58.39, rtol=1e-5)
    again = first_batches("resnet50", params, 4)
    assert all(
        np.array_equal(a, b) for x, y in zip(batches, again, strict=True) for a, b in zip(x, y, strict=True)
    )


def test_labels_beyond_the_classes_are_said(records: Path) -> None:
    with pytest.raises(WorkloadError, match=r"labels beyond the 2 classes; raise classes; got.*3"):
        first_batches("resnet50", {"data": str(records), "classes": 2}, 4)


def test_a_file_cut_short_is_said(records: Path) -> None:
    for path in records.iterdir():
        path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(WorkloadError, match=r"reading the dataset failed: truncated record"):
        first_batches("resnet50", {"data": str(records), "classes": 3}, 4)


def test_files_without_a_record_are_not_read_for_ever(records: Path) -> None:
    *others, last = sorted(records.iterdir())
    for path in others:
        path.write_bytes(b"")
    first_batches("resnet50", {"data": str(records), "classes": 3})
    last.write_bytes(b"")
    with pytest.raises(WorkloadError, match=r"data must have a record, got empty files alone, as .*train-0"):
        first_batches("resnet50", {"data": str(records), "classes": 3})


def test_another_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text(WORDS * 9)
    with pytest.raises(WorkloadError, match=r"reading the dataset failed: corrupted record"):
        first_batches("resnet50", {"data": str(tmp_path)})


def test_ratings(tmp_path: Path) -> None:
    path = tmp_path / "ratings.dat"
    path.write_text("".join(f"{u}::{10 * i}::5::0\n" for u in range(9) for i in range(u, u + 3)))
    for pairs, rated in first_batches("ncf", {"data": str(path)}, 5):
        assert (pairs.shape, pairs.dtype, rated.shape, rated.dtype) == ((4, 2), np.int32, (4,), np.float32)
        for (user, item), is_rated in zip(pairs, rated, strict=True):
            assert (user <= item < user + 3) == bool(is_rated)
    with pytest.raises(WorkloadError, match=r"users must be at least 9, as many as .* has, got 8; raise it"):
        first_batches("ncf", {"data": str(path), "users": 8})


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("gpt-small", {"vocabulary": 256}),
        ("lm1b", {"vocabulary": 60}),
        ("bert-base", {"vocabulary": 90}),
    ],
)
def test_text(tmp_path: Path, name: str, params: dict[str, object]) -> None:
    (tmp_path / "text").write_text(WORDS * 40)
    made_up = first_batches(name, params)
    read = first_batches(name, {**params, "data": str(tmp_path)})
    for ours, theirs in zip(read[0], made_up[0], strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        assert 0 <= ours.min() <= ours.max() < int(params["vocabulary"])
    assert not all(np.array_equal(a, b) for a, b in zip(read[0], read[1], strict=True))


@dataclass
class Numbers:
    """Examples that are numbers, each there once."""

    make: Callable[[], Any]
    name: str = "numbers"
    batch_size: int = 8
    flops_per_example: float | None = None

    def train_step(self) -> Any:
        raise AssertionError("only data are read")

    def dataset(self, seed: int) -> Any:
        return self.make()


def generated(n: int, *, raises_at: int | None = None) -> Any:
    """Numbers whose count TensorFlow does not know."""

    def rows() -> Iterator[int]:
        for k in range(n):
            if k == raises_at:
                raise ValueError(f"row {k} is broken")
            yield k

    return tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec((), tf.int64))


def batches(
    make: Callable[[], Any], worker: int = 0, n_workers: int = 2, seed: int = 3
) -> Iterator[list[Any]]:
    share = WorkerShare(worker=worker, n_workers=n_workers, n_examples=8 // n_workers, global_batch=8)
    return worker_batches(examples_of(Numbers(make), seed=seed), share, seed=seed, n_threads=1)


def first_examples(n: int, *args: Any, **kwargs: Any) -> list[int]:
    return [int(k) for (batch,) in itertools.islice(batches(*args, **kwargs), n) for k in batch]


@pytest.mark.parametrize("make", [lambda: tf.data.Dataset.range(30), lambda: generated(30)])
def test_workers_examples_are_disjoint_and_all_there_are(make: Callable[[], Any]) -> None:
    of_workers = [set(first_examples(40, make, worker=worker)) for worker in range(2)]
    assert not of_workers[0] & of_workers[1]
    assert of_workers[0] | of_workers[1] == set(range(30))


def test_one_worker_takes_whole_batches_of_everything() -> None:
    examples = first_examples(40, lambda: tf.data.Dataset.range(32), n_workers=1)
    assert set(examples) == set(range(32))
    # Passes mix where they meet, by no more than a buffer.
    assert all(8 <= n <= 12 for n in Counter(examples).values())


def test_equal_seeds_give_equal_batches_in_an_order_of_their_own() -> None:
    first, again, other = (
        first_examples(9, lambda: tf.data.Dataset.range(64), seed=seed) for seed in (3, 3, 4)
    )
    assert first == again != other
    assert first != sorted(first)


def test_fewer_examples_are_shuffled_where_they_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "SHUFFLE_BYTES", 8)  # one number
    assert first_examples(4, lambda: tf.data.Dataset.range(32)) == list(range(0, 32, 2))


@pytest.mark.parametrize("make", [lambda: tf.data.Dataset.range(7), lambda: generated(7)])
def test_less_than_a_global_batch_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(WorkloadError, match=r"numbers: the dataset must have the 8 examples .* got 7; lower"):
        batches(make)


def test_a_dataset_without_examples_is_refused() -> None:
    with pytest.raises(WorkloadError, match=r"the dataset must have the 8 examples .* got 0"):
        batches(lambda: generated(0))


def test_what_a_dataset_raises_later_names_it() -> None:
    read = batches(lambda: generated(2000, raises_at=1500))
    with pytest.raises(WorkloadError, match=r"workload numbers: reading the dataset failed: .*row 1500"):
        list(itertools.islice(read, 400))


def test_batches_keep_their_components() -> None:
    pairs = np.arange(16.0).reshape(8, 2)
    ((left, right),) = itertools.islice(
        batches(lambda: tf.data.Dataset.from_tensor_slices((pairs, np.arange(8)))), 1
    )
    np.testing.assert_array_equal(left[:, 0], 2.0 * right)
