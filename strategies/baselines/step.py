"""One training step under TensorFlow's own strategy, as its guide to custom training loops has it."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from strategies.errors import UnsupportedError
from strategies.tf_bridge.boundary import merge_duplicates, raw_variable
from strategies.tf_bridge.step_arguments import called_on
from strategies.tf_bridge.tracing import CapturableStep, reason_of
from strategies.topology import Replica

Array: TypeAlias = np.ndarray[Any, Any]
Sums: TypeAlias = Callable[[Sequence[tf.Tensor]], Sequence[tf.Tensor]]


class DistributedStep:
    """A step that every worker takes on its own replicas' shares of a batch.

    A replica's loss is scaled by its share of the global batch, so that the sum of all gradients is that of
    the global mean.

    Args:
        step: made in the distribution's scope.
        structure: of one example, `tf.TensorSpec` without the batch axis.
        replicas: this worker's.
        batch_size: of all replicas together.
    """

    def __init__(
        self,
        step: CapturableStep,
        distribution: tf.distribute.Strategy,
        structure: object,
        replicas: Sequence[Replica],
        batch_size: int,
    ) -> None:
        self._step = step
        self._distribution = distribution
        self._structure = structure
        self._replicas = {r.rank: r for r in replicas}
        self._start = min(r.start for r in replicas)
        self.weight = distribution.experimental_distribute_values_from_function(
            lambda context: tf.constant(self._replica(context).examples / batch_size)
        )
        sum_no_gradients(step.optimizer)
        self._train = tf.function(self._on_all)

    def trace(self) -> None:
        """Trace the step before anything is timed.

        Raises:
            UnsupportedError: TensorFlow's strategy refuses the step; the message says why.
        """
        n = sum(r.examples for r in self._replicas.values())
        specs = tf.nest.flatten(self._structure)
        empty = [np.zeros((n, *s.shape), s.dtype.as_numpy_dtype) for s in specs]
        try:
            self._train.get_concrete_function(self.placed(empty), self.weight)
        except Exception as error:
            raise UnsupportedError(
                f"train step: TensorFlow's strategy must be able to trace it, got {reason_of(error)}; leave "
                "this strategy out for this workload"
            ) from error

    def placed(self, batch: Sequence[Array]) -> tf.distribute.DistributedValues:
        """This worker's examples of a batch, laid out for its replicas."""

        def share(context: tf.distribute.experimental.ValueContext) -> object:
            replica = self._replica(context)
            rows = slice(replica.start - self._start, replica.stop - self._start)
            flat = [tf.constant(part[rows]) for part in batch]
            return tf.nest.pack_sequence_as(self._structure, flat)

        return self._distribution.experimental_distribute_values_from_function(share)

    def __call__(self, batch: tf.distribute.DistributedValues) -> Sequence[Array]:
        """Train on a placed batch; the loss of each local replica."""
        return [loss.numpy() for loss in self._train(batch, self.weight)]

    def _on_all(self, batch: tf.distribute.DistributedValues, weight: tf.Tensor) -> tuple[tf.Tensor, ...]:
        losses = self._distribution.run(self._on_one, args=(batch, weight))
        return tuple(self._distribution.experimental_local_results(losses))

    def _on_one(self, batch: object, weight: tf.Tensor) -> tf.Tensor:
        return train_once(self._step, batch, weight, sum_over_replicas)

    def _replica(self, context: tf.distribute.experimental.ValueContext) -> Replica:
        return self._replicas[context.replica_id_in_sync_group]


def train_once(step: CapturableStep, batch: object, weight: "tf.Tensor | float", sums: Sums) -> tf.Tensor:
    """Train on a replica's share of a batch, in the replica; its mean loss.

    Args:
        weight: the share's part in the mean that is trained on.
        sums: what is applied, of this replica's gradients.
    """
    variables = list(step.variables)
    with tf.GradientTape() as tape:
        loss = called_on(step.loss, batch)
        scaled = step.optimizer.scale_loss(loss * tf.cast(weight, loss.dtype))
    gradients = tape.gradient(scaled, [raw_variable(v) for v in variables])
    used = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
    summed = [_one_row_per_id(g) for g in sums([g for g, _ in used])]
    if step.clip_global_norm is not None:
        summed, _ = tf.clip_by_global_norm(summed, step.clip_global_norm)
    step.optimizer.apply(summed, [v for _, v in used])
    return loss


def sum_over_replicas(gradients: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    """The sums of all replicas' gradients, by whatever way the strategy in scope has; called in a replica."""
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)  # type: ignore[no-any-return]


def _one_row_per_id(gradient: "tf.Tensor | tf.IndexedSlices") -> "tf.Tensor | tf.IndexedSlices":
    """A sparse gradient as captured steps have it; Keras's optimizers take duplicates for several steps."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    return merge_duplicates(gradient.values, gradient.indices, gradient.dense_shape, name="merged")


def sum_no_gradients(optimizer: keras.optimizers.Optimizer) -> None:
    """Keep a Keras optimizer from summing gradients over replicas, which the step has done already.

    Keras 2 had an argument for this; Keras 3 has none, and clips before it sums.
    """
    for each in (optimizer, getattr(optimizer, "inner_optimizer", None)):
        if each is not None:
            each._all_reduce_sum_gradients = list  # noqa: SLF001
