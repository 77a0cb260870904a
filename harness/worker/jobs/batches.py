"""Batches of a case: global ones stored with its capture, staged ones in workers, or from a pipeline."""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from harness.errors import OUT_OF_MEMORY, CaseError, UsageError
from harness.experiment.cases import Case, global_batch
from harness.worker.jobs.arithmetic import set_tf32
from harness.worker.jobs.training import Batch as FedBatch
from harness.worker.jobs.training import StepSession, Training, stage
from harness.worker.jobs.workload import users_errors, workload_of
from harness.worker.process import os_process
from harness.worker.process.job import JobState
from harness.worker.session.capture_store import of_type

if TYPE_CHECKING:
    from workloads.data.examples import Examples, WorkerShare
    from workloads.protocol import Workload

Batch: TypeAlias = list[np.ndarray[Any, Any]]

MAX_STAGED_BYTES = 128 << 20


def write_batches(
    state: JobState,
    case: Case,
    seed: int,
    folder: str,
    n_batches: int,
    n_least: int,
) -> int:
    """Write the first global batches of a case's dataset, fewer if they are large; return their number.

    Args:
        n_batches: most that a case could use. n_least: least number, for batches of any size.
    """
    from workloads.data.examples import examples_of

    workload = workload_of(case)
    with users_errors(workload, "reading the dataset"):
        examples = examples_of(workload, seed=seed)
    batches = first_batches(case, workload, examples, n_batches, n_least)
    target = Path(folder)
    target.mkdir(parents=True)
    for number, part in enumerate(zip(*batches, strict=True)):
        values = np.stack(part)
        np.save(target / f"{number}.{values.dtype.name}.npy", values, allow_pickle=False)
    return len(batches)


def first_batches(
    case: Case, workload: "Workload", examples: "Examples", n_batches: int, n_least: int
) -> list[Batch]:
    """First global batches of a case, fewer if they are large.

    Args:
        examples: the workload's examples.
        n_batches: most that a case could use. n_least: least number, for batches of any size.
    """
    size = global_batch(case, workload.batch_size)
    example_bytes = sum(part.n_bytes for part in examples.components)
    # One copy while reading, one while writing.
    _require_memory(2 * n_least * size * example_bytes, case, size)
    with users_errors(workload, "reading the dataset"):
        batches = examples.batches(size)
        first = next(batches)
        batch_bytes = max(1, sum(part.nbytes for part in first))
        n = min(n_batches, max(n_least, MAX_STAGED_BYTES // batch_bytes))
        return [first, *itertools.islice(batches, n - 1)]


def read_batches(
    folder: Path, start: int | None = None, stop: int | None = None, n: int | None = None
) -> list[Batch]:
    """First n batches of `write_batches`, or the examples `[start, stop)` of each."""
    files = sorted(folder.glob("*.npy"), key=lambda path: int(path.name.partition(".")[0]))
    parts = [of_type(np.load(file, mmap_mode="r")[:n], Path(file.stem).suffix[1:]) for file in files]
    return [[np.ascontiguousarray(part[i, start:stop]) for part in parts] for i in range(len(parts[0]))]


def stage_batches(state: JobState, folder: str, start: int, stop: int) -> None:
    """Read this worker's examples of all batches into memory."""
    stage(state, read_batches(Path(folder), start, stop))


def open_pipeline(state: JobState, case: Case, seed: int, share: "WorkerShare") -> None:
    """Start the input pipeline of this worker's examples, and wait for its first batch.

    Later steps take their batches from it; staged ones remain for traced steps.

    Args:
        seed: seed of the dataset and of the order of its examples.
    Raises:
        UsageError: the dataset cannot be used; the message has the reason.
    """
    from workloads.data.examples import examples_of, worker_batches

    training = state.get(Training)
    _leave_gpus_to_the_session()
    workload = workload_of(case)
    with users_errors(workload, "reading the dataset"):
        examples = examples_of(workload, seed=seed)
        rows = worker_batches(examples, share, seed=seed, n_threads=case.shape.cores_per_worker)
        first = next(rows)
    # The workload's code has run again, and may have its own setting.
    set_tf32(state, case.computation.tf32)
    training.pipeline = _prepared(training.session, itertools.chain([first], rows), share.worker)


def _prepared(session: StepSession, batches: Iterator[FedBatch], worker: int) -> Iterator[FedBatch]:
    from workloads.protocol import WorkloadError

    try:
        for batch in batches:
            yield session.prepare(batch)
    except WorkloadError as error:
        raise UsageError(f"worker {worker}: {error}", field="workload") from error


def _leave_gpus_to_the_session() -> None:
    """Keep eager operations, which datasets use, from taking GPU memory that the session needs.

    If steps are eager themselves, TensorFlow already has its devices.
    """
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):
        tf.config.set_visible_devices([], "GPU")


def _require_memory(n_bytes: int, case: Case, batch_size: int) -> None:
    """Refuse batches that do not fit in memory, because they would bring the machine down.

    Raises:
        CaseError: `out-of-memory`.
    """
    available_bytes = os_process.available_memory_bytes()
    if available_bytes is not None and n_bytes > available_bytes:
        raise CaseError(
            OUT_OF_MEMORY,
            f"must fit in memory, got {batch_size}, whose batches take "
            f"{n_bytes / 1e9:.3g} GB of {available_bytes / 1e9:.3g} GB; lower batch_size, "
            "or give workers more memory",
            stage="capture",
            field=f"{case.workload.reference}.batch_size",
        )
