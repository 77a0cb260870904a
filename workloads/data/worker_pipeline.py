"""A worker's input pipeline: its examples of a dataset, shuffled, batched, and made ahead of its steps."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workloads.data.examples import Array, Examples, batches_of, reading
from workloads.errors import WorkloadError

if TYPE_CHECKING:
    import tensorflow as tf

SHUFFLE_EXAMPLES = 1024
SHUFFLE_BYTES = 64 << 20
PREFETCH_BATCHES = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerShare:
    """What one worker takes of a dataset, all workers having as many replicas.

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
    """How many examples there are; counting ends at so many where they must be read for that."""
    import tensorflow as tf

    known = int(dataset.cardinality())
    if known == tf.data.INFINITE_CARDINALITY:
        return at_most
    if known != tf.data.UNKNOWN_CARDINALITY:
        return known
    with reading(name):
        return int(dataset.take(at_most).reduce(0, lambda n, *_: n + 1))
