"""XLA in a worker's process: compiling sessions, and a list of the compiled operations of a step."""

import itertools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.worker.jobs.training import Training
from harness.worker.process.job import Job, JobState

if TYPE_CHECKING:
    from harness.worker.session.compiled_clusters import CompiledClusters

_FLAGS = "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit"


def start_compiling(
    state: JobState,
    task: int,
    addresses: Sequence[str],
    n_devices: int,
    *,
    server: Job[int, Sequence[str], int, None],
) -> None:
    """Start a server whose sessions XLA compiles, in a process that has run no step yet.

    TensorFlow looks for clusters in all graphs; Python calls, sends, receives and collectives are never
    compiled.

    Args:
        server: job that starts it.
    """
    # TensorFlow reads them only once, when it first looks for clusters.
    os.environ["TF_XLA_FLAGS"] = " ".join(filter(None, [os.environ.get("TF_XLA_FLAGS"), _FLAGS]))
    server(state, task, addresses, n_devices)


def compiled_clusters(state: JobState, n_steps: int) -> "CompiledClusters":
    """Run steps while all workers do, and return the clusters of the first."""
    import tensorflow as tf

    from harness.worker.session.compiled_clusters import clusters_of
    from harness.worker.session.session import WorkerSession

    training = state.get(Training)
    assert isinstance(training.session, WorkerSession)
    session = training.session
    with session.traced() as tracer:
        options = tf.compat.v1.RunOptions(output_partition_graphs=True)
        options.trace_level = options.FULL_TRACE
        tracer.begin(options)
        first, *others = itertools.islice(itertools.cycle(training.feeds), n_steps)
        session.step(first)
        seen = list(tracer.seen)
        for feeds in others:
            session.step(feeds)
    return clusters_of(seen)
