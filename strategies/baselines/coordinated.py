"""Training under TensorFlow's ParameterServerStrategy, following its guide to custom training loops."""

import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from strategies.baselines.replicated_step import Gradient, ReplicaBoundary, in_replica
from strategies.baselines.variables import refused_by_tensorflow
from strategies.capture.tracing import Body

Array: TypeAlias = np.ndarray[Any, Any]

WORKER, SERVER, COORDINATOR = "worker", "ps", "chief"


def serve(cluster: tf.train.ClusterSpec, job: str, task: int) -> tf.distribute.Server:
    """Start TensorFlow's server of a worker or parameter server; it ends with its process."""
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=n_threads(cluster.num_tasks(WORKER)))
    return tf.distribute.Server(cluster, job_name=job, task_index=task, protocol="grpc", config=config)


def n_threads(n_workers: int) -> int:
    """Number of inter-op threads that a process needs, however few cores it has.

    It needs one thread per worker and one more: with fewer, closures that wait for a parameter server keep
    the server from answering, and all hang. TensorFlow's guide sets this number for each server. The servers
    of a process share the thread pool, which the first one creates.
    """
    return max(2 * (n_workers + 1), len(os.sched_getaffinity(0)))


def connected(cluster: tf.train.ClusterSpec) -> tf.distribute.ParameterServerStrategy:
    """Make the coordinator's strategy; every server of the cluster must be up.

    It has no partitioner, because Keras 3 does not train partitioned variables.
    """
    return tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.SimpleClusterResolver(
            cluster, task_type=COORDINATOR, task_id=0, rpc_layer="grpc"
        )
    )


class CoordinatedStep:
    """Training step that a coordinator schedules on free workers, one closure per worker's share.

    Args:
        body: training step of a workload created in the distribution's scope.
        boundary: boundary at which a step's gradients are weighted.
        structure: structure of `tf.TensorSpec` for one example, without the batch axis.
        share: examples per closure, the same for every worker.
    """

    def __init__(
        self,
        body: Body,
        boundary: ReplicaBoundary,
        distribution: tf.distribute.ParameterServerStrategy,
        structure: object,
        share: int,
        n_workers: int,
    ) -> None:
        self._body, self._boundary = body, boundary
        self._distribution = distribution
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(distribution)
        self._spec = tf.nest.map_structure(lambda s: tf.TensorSpec((share, *s.shape), s.dtype), structure)
        self._share, self._n_workers = share, n_workers
        self._iterator: object = None
        self._on_one = tf.function(self._train)
        self._closure = tf.function(self._timed)

    def trace(self) -> None:
        """Trace the closure before anything is timed.

        Raises:
            UnsupportedError: TensorFlow's strategy refuses the step; the message gives the reason.
        """
        with refused_by_tensorflow():
            self._closure.get_concrete_function(tf.data.IteratorSpec(self._spec))

    def feed(self, batches: Sequence[Sequence[Array]]) -> None:
        """Store each worker's shares of the global batches on the worker; steps use them in turn."""
        shape = (len(batches), self._n_workers, self._share)
        parts = [
            tf.constant(np.stack(p).reshape(*shape, *p[0].shape[1:])) for p in zip(*batches, strict=True)
        ]

        def shares() -> tf.data.Dataset:
            worker = tf.distribute.coordinator.experimental_get_current_worker_index()
            own = [tf.gather(part, worker, axis=1) for part in parts]
            dataset = tf.data.Dataset.from_tensor_slices(tf.nest.pack_sequence_as(self._spec, own))
            return dataset.repeat().prefetch(tf.data.AUTOTUNE)

        self._iterator = iter(self._coordinator.create_per_worker_dataset(shares))

    def run(self, n_closures: int) -> tuple[Array, Array, Array]:
        """Train until the workers have finished `n_closures` closures in total.

        Returns:
            For every closure, in order of completion: loss, completion time in seconds on the clock of
            `time.time`, and number of its worker.
        """
        values = [
            self._coordinator.schedule(self._closure, args=(self._iterator,)) for _ in range(n_closures)
        ]
        self._coordinator.join()
        # If requested while workers train, each value would cost them a call.
        losses, ended_s, workers = np.asarray([value.fetch() for value in values], np.float64).T
        order = np.argsort(ended_s, kind="stable")
        return losses[order], ended_s[order], workers[order].astype(np.int64)

    def _train(self, batch: object) -> tf.Tensor:
        with self._boundary.hooked():
            return self._distribution.run(self._in_replica, args=(batch,))

    def _in_replica(self, batch: object) -> object:
        with in_replica(tf.constant(1.0, tf.float64), by_itself):
            return self._boundary.loss_of(self._body, batch)

    def _timed(self, iterator: "tf.data.Iterator") -> tf.Tensor:
        loss = self._on_one(next(iterator))
        # Wait for the call itself, and thereby for all its assignments.
        with tf.control_dependencies([loss]):
            ended_s = tf.timestamp()
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        return tf.stack([tf.cast(loss, tf.float64), ended_s, tf.cast(worker, tf.float64)])


def by_itself(gradients: Sequence[Gradient]) -> Sequence[Gradient]:
    """Return the gradients unchanged: a closure applies only its own."""
    return gradients
