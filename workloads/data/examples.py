"""Examples of a workload: the same global batches in every process, or one worker's own input pipeline."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from strategies.user_errors import graph_error
from workloads.protocol import Workload, WorkloadError
from workloads.user_file import check_batch_size, describe_failure

if TYPE_CHECKING:
    import tensorflow as tf


Array = npt.NDArray[np.generic]
_EMPTY = "the dataset has no examples; return at least one"
_DENSE = {
    "RaggedTensorSpec": "ragged.to_tensor(shape=[…]), which pads",
    "SparseTensorSpec": "tf.sparse.to_dense",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """One tensor of an example.

    Args:
        name: place in the structure: `0/1` in tuples, the key in dicts.
        dtype: TensorFlow's type name, such as `float32`.
        shape: shape without the batch axis.
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
        components: tensors of one example, in the order of `tf.nest.flatten`.
        dataset: dataset of single, unbatched examples.
    """

    workload_name: str
    components: tuple[Component, ...]
    dataset: "tf.data.Dataset"

    def batches(self, batch_size: int) -> Iterator[list[Array]]:
        """Return an endless sequence of global batches of `batch_size` examples, read on demand.

        A finite dataset is repeated, so that every batch is full.

        Returns:
            Per batch one array [batch_size, ...] for each component.

        Raises:
            WorkloadError: the size is not a positive whole number, or the dataset is empty or raises later.
        """
        import tensorflow as tf

        check_batch_size({"batch_size": batch_size})
        options = tf.data.Options()
        options.deterministic = True
        whole = self.dataset.repeat().batch(batch_size, drop_remainder=True).with_options(options)
        return batches_of(self.workload_name, whole)


def examples_of(workload: Workload, *, seed: int = 0) -> Examples:
    """Make a workload's dataset; equal arguments give equal datasets in every process.

    Sets TensorFlow's global seed to `seed`, because dataset operations that shuffle or augment mix the global
    seed into their own.

    Args:
        seed: seed passed to the workload, which decides whether it shuffles.

    Raises:
        WorkloadError: the dataset does not consist of tensors of fixed shapes.
    """
    import tensorflow as tf

    tf.random.set_seed(seed)
    dataset = _dataset(workload, seed)
    components = tuple(_components(workload.name, dataset))
    return Examples(workload_name=workload.name, components=components, dataset=dataset)


def batches_of(name: str, dataset: "tf.data.Dataset") -> Iterator[list[Array]]:
    """Read an endless dataset of batches; its seed is already fixed, however late reading begins.

    Raises:
        WorkloadError: the dataset is empty or raises.
    """
    import tensorflow as tf

    rows = iter(dataset)
    while True:
        with reading(name):
            batch = next(rows, None)
        if batch is None:
            raise _refusal(name, _EMPTY)
        yield [np.asarray(tensor) for tensor in tf.nest.flatten(batch)]


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn an exception of a dataset that is being read into a one-line error."""
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        raise _refusal(name, f"reading the dataset failed: {graph_error(error.message)}") from error


def _refusal(name: str, rule: str) -> WorkloadError:
    return WorkloadError(f"workload {name}: {rule}", field="dataset")


def _dataset(workload: Workload, seed: int) -> "tf.data.Dataset":
    import tensorflow as tf

    try:
        dataset = workload.dataset(seed)
    except WorkloadError:
        raise
    except Exception as error:
        raise WorkloadError(describe_failure(error), field="dataset") from error
    if not isinstance(dataset, tf.data.Dataset):
        raise _refusal(
            workload.name,
            f"dataset(seed) must return a tf.data.Dataset, got {type(dataset).__name__}; wrap arrays with "
            "tf.data.Dataset.from_tensor_slices",
        )
    if dataset.cardinality() == 0:
        raise _refusal(workload.name, _EMPTY)
    return dataset


def _components(name: str, dataset: "tf.data.Dataset") -> list[Component]:
    components = []
    leaves = list(_leaves(dataset.element_spec, ()))
    if leaves and all(_is_batch(spec) for _, spec in leaves):
        raise _refusal(
            name,
            "dataset(seed) must return single examples of one fixed shape, got parts of shapes "
            f"{', '.join(str(spec.shape) for _, spec in leaves)}; leave out .batch(), because batch_size "
            "sets the size of a batch, and pad what varies in length",
        )
    for path, spec in leaves:
        place = "/".join(path) or "0"
        if (rule := _broken_rule(spec)) is not None:
            raise _refusal(name, f"part {place} of the dataset must {rule}")
        components.append(Component(name=place, dtype=spec.dtype.name, shape=tuple(spec.shape.as_list())))
    return components


def _broken_rule(spec: object) -> str | None:
    """Rule that a part of an example breaks, with the way out; None if it can be used."""
    import tensorflow as tf

    if not isinstance(spec, tf.TensorSpec):
        way_out = _DENSE.get(type(spec).__name__, "tf.convert_to_tensor")
        return f"be a dense tensor, got {type(spec).__name__}; convert it in dataset.map, with {way_out}"
    if not spec.shape.is_fully_defined():
        return (
            f"have one fixed shape, got {spec.shape}; pad or crop it in dataset.map, or state the shape with "
            "tf.ensure_shape"
        )
    if not spec.dtype.size:
        return (
            f"be numbers, got {spec.dtype.name}; convert it in dataset.map, text with StringLookup or "
            "TextVectorization, in place of such layers in the model"
        )
    return None


def _is_batch(spec: object) -> bool:
    """True if the first axis alone has no fixed length, since the last batch may be smaller."""
    import tensorflow as tf

    if not isinstance(spec, tf.TensorSpec) or not spec.shape.rank:
        return False
    return spec.shape[0] is None and spec.shape[1:].is_fully_defined()


def _leaves(spec: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:  # noqa: ANN401
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
    """One worker's share of a dataset; all workers have equally many replicas.

    Args:
        worker: worker's number, from 0. n_workers: number of workers; the dataset has a shard for each.
        n_examples: this worker's examples per step. global_batch: examples per step over all workers.
    """

    worker: int
    n_workers: int
    n_examples: int
    global_batch: int


def worker_batches(
    examples: Examples, share: WorkerShare, *, seed: int, n_threads: int
) -> Iterator[list[Array]]:
    """Return an endless sequence of a worker's batches, prepared in background threads of their own.

    Worker w gets the examples i with i mod n_workers = w, in every pass over the dataset, so that no two
    workers share an example. Passes follow each other without a gap and mix where they meet. Equal arguments
    give equal batches.

    Args:
        seed: seed of the examples' order.
        n_threads: number of threads that prepare examples.
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
        # A buffer that is refilled in each pass would stall steps on a small dataset.
        own.repeat()
        .shuffle(_shuffle_buffer(examples, own), seed=seed)
        .batch(share.n_examples, drop_remainder=True)
        .prefetch(PREFETCH_BATCHES)
    )
    return batches_of(examples.workload_name, batches.with_options(options))


def _shuffle_buffer(examples: Examples, own: "tf.data.Dataset") -> int:
    """Size of the shuffle buffer: smaller for large examples, and at most the worker's number of examples."""
    example_bytes = max(1, sum(part.n_bytes for part in examples.components))
    n_there = int(own.cardinality())
    n_most = SHUFFLE_EXAMPLES if n_there <= 0 else min(SHUFFLE_EXAMPLES, n_there)
    return max(1, min(n_most, SHUFFLE_BYTES // example_bytes))


def _require_batch(examples: Examples, global_batch: int) -> None:
    """Refuse a dataset with fewer examples than a global batch, which would contain some of them twice.

    Raises:
        WorkloadError: the dataset has fewer.
    """
    n_there = _n_examples(examples.workload_name, examples.dataset, at_most=global_batch)
    if n_there < global_batch:
        raise _refusal(
            examples.workload_name,
            f"the dataset must have the {global_batch} examples of a global batch for its pipeline, got "
            f"{n_there}; lower batch_size, or set measure.input=staged",
        )


def _n_examples(name: str, dataset: "tf.data.Dataset", *, at_most: int) -> int:
    """Number of examples; if they must be read to be counted, counting stops at `at_most`."""
    import tensorflow as tf

    known = int(dataset.cardinality())
    if known == tf.data.INFINITE_CARDINALITY:
        return at_most
    if known != tf.data.UNKNOWN_CARDINALITY:
        return known
    with reading(name):
        return int(dataset.take(at_most).reduce(0, lambda n, *_: n + 1))
