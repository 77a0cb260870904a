"""One training step under TensorFlow's own strategy, as its guide to custom training loops has it."""

import contextlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from strategies.baselines.replica_boundary import Gradient, ReplicaBoundary, in_replica
from strategies.baselines.variables import refused_by_tensorflow
from strategies.capture.tracing import Body
from strategies.topology import Replica

Array: TypeAlias = np.ndarray[Any, Any]


class DistributedStep:
    """A step that every worker takes on its own replicas' shares of a batch.

    A replica's gradients are scaled by its share of the global batch, so that the sum of all is that of the
    global mean; those of a loss that is a sum are left as they are.

    Attributes:
        parts_on_gpus: whether parts of a placed batch lie on GPUs; known once the step is traced.
    Args:
        body: the step, of a workload made in the distribution's scope.
        boundary: where a step's gradients are weighed and summed.
        structure: of one example, `tf.TensorSpec` without the batch axis.
        replicas: this worker's.
        batch_size: of all replicas together.
        weight_dtype: of their shares of it.
        on_host: batches for GPUs lie on the host until a step takes them.
    """

    def __init__(
        self,
        body: Body,
        boundary: ReplicaBoundary,
        distribution: tf.distribute.Strategy,
        structure: object,
        replicas: Sequence[Replica],
        batch_size: int,
        weight_dtype: tf.DType = tf.float64,
        *,
        on_host: bool = False,
    ) -> None:
        self._body, self._boundary = body, boundary
        self._distribution = distribution
        self._structure = structure
        self._replicas = {r.rank: r for r in replicas}
        self._start = min(r.start for r in replicas)
        self.weight = distribution.experimental_distribute_values_from_function(
            lambda context: tf.constant(self._replica(context).examples / batch_size, weight_dtype)
        )
        self._on_host = on_host
        self.parts_on_gpus: set[bool] = set()
        self._train = tf.function(self._on_all)

    def trace(self) -> None:
        """Trace the step before anything is timed.

        Raises:
            UnsupportedError: TensorFlow's strategy refuses the step; the message says why.
        """
        n = sum(r.examples for r in self._replicas.values())
        specs = tf.nest.flatten(self._structure)
        empty = [np.zeros((n, *s.shape), s.dtype.as_numpy_dtype) for s in specs]
        batch = self.placed(empty)
        for values in self._distribution.experimental_local_results(batch):
            devices = (tf.DeviceSpec.from_string(part.backing_device) for part in tf.nest.flatten(values))
            self.parts_on_gpus.update(device.device_type == "GPU" for device in devices)
        with refused_by_tensorflow():
            self._train.get_concrete_function(batch, self.weight)

    def placed(self, batch: Sequence[Array]) -> tf.distribute.DistributedValues:
        """This worker's examples of a batch, laid out for its replicas."""

        def share(context: tf.distribute.experimental.ValueContext) -> object:
            replica = self._replica(context)
            rows = slice(replica.start - self._start, replica.stop - self._start)
            with self._memory_for(replica):
                flat = [tf.constant(part[rows]) for part in batch]
            return tf.nest.pack_sequence_as(self._structure, flat)

        return self._distribution.experimental_distribute_values_from_function(share)

    def __call__(self, batch: tf.distribute.DistributedValues) -> Sequence[Array]:
        """Train on a placed batch; the loss of each local replica."""
        return [loss.numpy() for loss in self._train(batch, self.weight)]

    def _on_all(self, batch: tf.distribute.DistributedValues, weight: tf.Tensor) -> tuple[tf.Tensor, ...]:
        with self._boundary.hooked():
            losses = self._distribution.run(self._on_one, args=(batch, weight))
        return tuple(self._distribution.experimental_local_results(losses))

    def _on_one(self, batch: object, weight: tf.Tensor) -> tf.Tensor:
        with in_replica(weight, sum_over_replicas):
            return self._boundary.loss_of(self._body, batch)

    def _memory_for(self, replica: Replica) -> contextlib.AbstractContextManager[object]:
        """Memory that a replica on a GPU takes values from; for others TensorFlow chooses it."""
        device = tf.DeviceSpec.from_string(replica.device)
        if device.device_type != "GPU":
            return contextlib.nullcontext()
        return tf.device("/CPU:0" if self._on_host else f"/GPU:{device.device_index}")  # type: ignore[no-any-return]

    def _replica(self, context: tf.distribute.experimental.ValueContext) -> Replica:
        return self._replicas[context.replica_id_in_sync_group]


def sum_over_replicas(gradients: Sequence[Gradient]) -> Sequence[Gradient]:
    """The sums of all replicas' gradients, by whatever way the strategy in scope has; called in a replica."""
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)  # type: ignore[no-any-return]
