"""Has a worker's steps take batches as the workload's dataset makes them, in place of staged ones."""

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness.errors import UsageError
from harness.experiment.cases import Case
from harness.worker.jobs.training import Batch, StepSession, Training
from harness.worker.jobs.workload import users_mistakes, workload_of
from harness.worker.process.job import JobState

if TYPE_CHECKING:
    from workloads.data.worker_pipeline import WorkerShare


def open_pipeline(state: JobState, case: Case, seed: int, share: "WorkerShare") -> None:
    """Make the pipeline of this worker's examples, and wait until its first batch is there.

    Steps from now on take its batches; those that are staged remain for traced ones.

    Args:
        seed: of the dataset and of the order of its examples.
    Raises:
        UsageError: the dataset cannot be used; the message says why.
    """
    from workloads.data.examples import examples_of
    from workloads.data.worker_pipeline import worker_batches

    training = state.get(Training)
    _leave_gpus_to_the_session()
    workload = workload_of(case)
    with users_mistakes(workload, "dataset() must return examples"):
        examples = examples_of(workload, seed=seed)
        rows = worker_batches(examples, share, seed=seed, n_threads=case.shape.cores_per_worker)
        first = next(rows)
    training.pipeline = _prepared(training.session, itertools.chain([first], rows), share.worker)


def _prepared(session: StepSession, batches: Iterator[Batch], worker: int) -> Iterator[Batch]:
    from workloads.errors import WorkloadError

    try:
        for batch in batches:
            yield session.prepare(batch)
    except WorkloadError as error:
        raise UsageError(f"worker {worker}: {error}", field="workload") from error


def _leave_gpus_to_the_session() -> None:
    """Keep eager operations, which datasets are made of, from claiming memory that the session's graph needs.

    Where steps are eager themselves, TensorFlow has its devices already.
    """
    import contextlib

    import tensorflow as tf

    with contextlib.suppress(RuntimeError):
        tf.config.set_visible_devices([], "GPU")
