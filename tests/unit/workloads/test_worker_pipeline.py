"""A worker's own batches of a dataset: whose examples, in which order, and datasets that cannot be used."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from workloads.data import worker_pipeline
from workloads.data.examples import examples_of
from workloads.data.worker_pipeline import WorkerShare, worker_batches
from workloads.errors import WorkloadError


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


def taken(n: int, *args: Any, **kwargs: Any) -> list[int]:
    return [int(k) for (batch,) in itertools.islice(batches(*args, **kwargs), n) for k in batch]


@pytest.mark.parametrize("make", [lambda: tf.data.Dataset.range(30), lambda: generated(30)])
def test_workers_examples_are_disjoint_and_all_there_are(make: Callable[[], Any]) -> None:
    of_workers = [set(taken(40, make, worker=worker)) for worker in range(2)]
    assert not of_workers[0] & of_workers[1]
    assert of_workers[0] | of_workers[1] == set(range(30))


def test_one_worker_takes_whole_batches_of_everything() -> None:
    examples = taken(40, lambda: tf.data.Dataset.range(32), n_workers=1)
    assert set(examples) == set(range(32))
    # Passes mix where they meet, by no more than a buffer.
    assert all(8 <= n <= 12 for n in Counter(examples).values())


def test_equal_seeds_give_equal_batches_in_an_order_of_their_own() -> None:
    first, again, other = (taken(9, lambda: tf.data.Dataset.range(64), seed=seed) for seed in (3, 3, 4))
    assert first == again != other
    assert first != sorted(first)


def test_fewer_examples_are_shuffled_where_they_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pipeline, "SHUFFLE_BYTES", 8)  # one number
    assert taken(4, lambda: tf.data.Dataset.range(32)) == list(range(0, 32, 2))


@pytest.mark.parametrize("make", [lambda: tf.data.Dataset.range(7), lambda: generated(7)])
def test_less_than_a_global_batch_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(WorkloadError, match=r"numbers: dataset\(\) must have the 8 examples .* got 7; lower"):
        batches(make)


def test_a_dataset_without_examples_is_refused() -> None:
    with pytest.raises(WorkloadError, match=r"dataset\(\) must have the 8 examples .* got 0"):
        batches(lambda: generated(0))


def test_what_a_dataset_raises_later_names_it() -> None:
    read = batches(lambda: generated(2000, raises_at=1500))
    with pytest.raises(
        WorkloadError, match=r"workload numbers: dataset\(\) failed while being read: .*row 1500"
    ):
        list(itertools.islice(read, 400))


def test_batches_keep_their_components() -> None:
    pairs = np.arange(16.0).reshape(8, 2)
    ((left, right),) = itertools.islice(
        batches(lambda: tf.data.Dataset.from_tensor_slices((pairs, np.arange(8)))), 1
    )
    np.testing.assert_array_equal(left[:, 0], 2.0 * right)
