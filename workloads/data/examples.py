"""A workload's examples: the same global batches in every process, or one worker's own pipeline."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from strategies.user_errors import graph_error
from workloads.protocol import Workload, WorkloadError
from workloads.user_file import describe_failure

if TYPE_CHECKING:
    import tensorflow as tf


Array = npt.NDArray[np.generic]
_DENSE = {
    "RaggedTensorSpec": "ragged.to_tensor(shape=[…]), which pads",
    "SparseTensorSpec": "tf.sparse.to_dense",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """One tensor of an example.

    Args:
        name: its place in the structure, as `0/1` in tuples or by key in dicts.
        dtype: TensorFlow's name of its type, such as `float32`.
        shape: without the batch axis.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        import tensorflow as tf

        return math.prod(self.shape) * int(tf.as_dtype(self.dtype).size)


@dataclass(frozen=True, kw_only=True, slots=True)
class Examples:
    """A workload's examples.

    Args:
        workload_name: of the workload, for errors.
        components: tensors of an example, in the order of `tf.nest.flatten`.
        dataset: of single examples.
    """

    workload_name: str
    components: tuple[Component, ...]
    dataset: "tf.data.Dataset"

    def batches(self, batch_size: int) -> Iterator[list[Array]]:
        """Return the endless sequence of global batches of so many examples, read as they are taken.

        A dataset that ends begins again, so that every batch is full.

        Returns:
            Per batch one array [batch_size, ...] for each component.

        Raises:
            WorkloadError: when the size is no positive whole number, or the dataset is empty or raises later.
        """
        import tensorflow as tf

        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            message = f"batch_size must be a positive whole number, got {batch_size!r}"
            raise WorkloadError(message, field="batch_size")
        options = tf.data.Options()
        options.deterministic = True
        whole = self.dataset.repeat().batch(batch_size, drop_remainder=True).with_options(options)
        return batches_of(self.workload_name, whole)


def examples_of(workload: Workload, *, seed: int = 0) -> Examples:
    """Make a workload's dataset, equal for equal arguments in every process.

    TensorFlow's global seed is set to `seed`, because operations of a dataset that shuffle or augment mix it
    into their own.

    Args:
        seed: given to the workload, which decides whether it shuffles.

    Raises:
        WorkloadError: when the dataset is not one of tensors of fixed shapes.
    """
    import tensorflow as tf

    tf.random.set_seed(seed)
    dataset = _dataset(workload, seed)
    components = tuple(_components(workload.name, dataset))
    return Examples(workload_name=workload.name, components=components, dataset=dataset)


def batches_of(name: str, dataset: "tf.data.Dataset") -> Iterator[list[Array]]:
    """Read a dataset of batches that has no end; its seed is fixed already, however late reading begins.

    Args:
        name: of the workload, for errors.
    Raises:
        WorkloadError: the dataset is empty or raises.
    """
    import tensorflow as tf

    rows = iter(dataset)
    while True:
        with reading(name):
            batch = next(rows, None)
        if batch is None:
            message = f"workload {name}: dataset() has no examples; return at least one"
            raise WorkloadError(message, field="dataset")
        yield [np.asarray(tensor) for tensor in tf.nest.flatten(batch)]


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn what a dataset raises while it is read into one line.

    Args:
        name: of the workload.
    """
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        message = f"workload {name}: dataset() failed while being read: {graph_error(error.message)}"
        raise WorkloadError(message, field="dataset") from error


def _dataset(workload: Workload, seed: int) -> "tf.data.Dataset":
    import tensorflow as tf

    try:
        dataset = workload.dataset(seed)
    except WorkloadError:
        raise
    except Exception as error:
        raise WorkloadError(describe_failure(error), field="dataset") from error
    if not isinstance(dataset, tf.data.Dataset):
        message = (
            f"workload {workload.name}: dataset() must return a tf.data.Dataset,"
            f" got {type(dataset).__name__}; wrap arrays with tf.data.Dataset.from_tensor_slices"
        )
        raise WorkloadError(message, field="dataset")
    if dataset.cardinality() == 0:
        message = f"workload {workload.name}: dataset() has no examples; return at least one"
        raise WorkloadError(message, field="dataset")
    return dataset


def _components(name: str, dataset: "tf.data.Dataset") -> list[Component]:
    import tensorflow as tf

    components = []
    leaves = list(_leaves(dataset.element_spec, ()))
    if leaves and all(_is_batch(spec) for _, spec in leaves):
        message = (
            f"workload {name}: dataset() must return single examples of one fixed shape, got"
            f" {dataset.element_spec}; leave out .batch(), for batch_size says how many make a batch, and pad"
            " what varies in length"
        )
        raise WorkloadError(message, field="dataset")
    for path, spec in leaves:
        place = "/".join(path) or "0"
        if not isinstance(spec, tf.TensorSpec):
            message = (
                f"workload {name}: component {place} of dataset() must be a dense tensor, got"
                f" {type(spec).__name__}; make it one of fixed shape in dataset().map, by"
                f" {_DENSE.get(type(spec).__name__, 'tf.convert_to_tensor')}"
            )
            raise WorkloadError(message, field="dataset")
        if not spec.shape.is_fully_defined():
            message = (
                f"workload {name}: component {place} of dataset() must have one fixed shape,"
                f" got {spec.shape}; pad or crop the examples, or state the shape with tf.ensure_shape"
            )
            raise WorkloadError(message, field="dataset")
        if not spec.dtype.size:
            message = (
                f"workload {name}: component {place} of dataset() must be of numbers, got {spec.dtype.name};"
                " turn it into numbers in dataset(), text by a lookup or tf.strings.to_number"
            )
            raise WorkloadError(message, field="dataset")
        components.append(Component(name=place, dtype=spec.dtype.name, shape=tuple(spec.shape.as_list())))
    return components


def _is_batch(spec: object) -> bool:
    """True if the first axis alone has no fixed length, since the last batch may be smaller."""
    import tensorflow as tf

    if not isinstance(spec, tf.TensorSpec) or not spec.shape.rank:
        return False
    return spec.shape[0] is None and spec.shape[1:].is_fully_defined()


def _leaves(spec: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    if isinstance(spec, Mapping):
        for key in sorted(spec):
            yield from _leaves(spec[key], (*path, str(key)))
    elif isinstance(spec, list | tuple):
        for position, item in enumerate(spec):
            yield from _leaves(item, (*path, str(position)))
    else:
        yield path, spec


SHUFFLE_EXAMPLES = 1024
SHUFFLE_BYTES = 64 << 20
PREFETCH_BATCHES = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerShare:
    """Share of a dataset for one worker; all workers have as many replicas.

    Args:
        worker: from 0. n_workers: the dataset has a shard for each.
        n_examples: this worker's in a step. global_batch: those of all workers together.
    """

    worker: int
    n_workers: int
    n_examples: int
    global_batch: int


def worker_batches(
    examples: Examples, share: WorkerShare, *, seed: int, n_threads: int
) -> Iterator[list[Array]]:
    """Return the endless sequence of a worker's batches, made by threads of its own while others are in use.

    Example i of the dataset is of worker i modulo their number, in every pass over the dataset, so that no
    two workers share one. Passes follow each other without a gap and mix where they meet. Equal arguments
    give equal batches.

    Args:
        seed: of the order in which examples come.
        n_threads: that make examples.
    Returns:
        Per batch one array [n_examples, ...] for each component.
    Raises:
        WorkloadError: the dataset has fewer examples than a global batch, or raises later.
    """
    import tensorflow as tf

    _require_batch(examples, share.global_batch)
    options = tf.data.Options()
    options.deterministic = True
    options.threading.private_threadpool_size = n_threads
    options.autotune.cpu_budget = n_threads
    own = examples.dataset
    if share.n_workers > 1:
        own = own.shard(share.n_workers, share.worker)
    batches = (
        # A buffer that is filled anew for each pass would have steps on a small dataset stand still.
        own.repeat()
        .shuffle(_shuffle_buffer(examples, own), seed=seed)
        .batch(share.n_examples, drop_remainder=True)
        .prefetch(PREFETCH_BATCHES)
    )
    return batches_of(examples.workload_name, batches.with_options(options))


def _shuffle_buffer(examples: Examples, own: "tf.data.Dataset") -> int:
    """Examples of which each next one is drawn: fewer where they are large, and no more than a worker has."""
    example_bytes = max(1, sum(part.n_bytes for part in examples.components))
    n_there = int(own.cardinality())
    n_most = SHUFFLE_EXAMPLES if n_there <= 0 else min(SHUFFLE_EXAMPLES, n_there)
    return max(1, min(n_most, SHUFFLE_BYTES // example_bytes))


def _require_batch(examples: Examples, global_batch: int) -> None:
    """Refuse a dataset that would have to begin again within the first batch, and so give examples twice.

    Raises:
        WorkloadError: it does.
    """
    n_there = _n_examples(examples.workload_name, examples.dataset, at_most=global_batch)
    if n_there < global_batch:
        message = (
            f"workload {examples.workload_name}: dataset() must have the {global_batch} examples of a global "
            f"batch for its pipeline, got {n_there}; lower batch_size, or take measure.input=staged"
        )
        raise WorkloadError(message, field="dataset")


def _n_examples(name: str, dataset: "tf.data.Dataset", *, at_most: int) -> int:
    """Number of examples; counting ends at `at_most` if they must be read for that."""
    import tensorflow as tf

    known = int(dataset.cardinality())
    if known == tf.data.INFINITE_CARDINALITY:
        return at_most
    if known != tf.data.UNKNOWN_CARDINALITY:
        return known
    with reading(name):
        return int(dataset.take(at_most).reduce(0, lambda n, *_: n + 1))
