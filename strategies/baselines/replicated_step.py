"""Training step under TensorFlow's replicated strategies; gradients are weighted and summed at the boundary.

It follows TensorFlow's guide to custom training loops.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from strategies.baselines.variables import refused_by_tensorflow
from strategies.capture.boundary import (
    TARGET_PREFIX,
    BoundaryRecorder,
    boundary_slug,
    hooked_gradients,
    is_trainable,
)
from strategies.capture.hooks import replaced
from strategies.capture.tracing import Body
from strategies.ir.train_graph import Loss
from strategies.topology import Replica

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices
Sums: TypeAlias = Callable[[Sequence[Gradient]], Sequence[Gradient]]


@dataclass(slots=True, kw_only=True)
class _Replica:
    """A replica whose step is being traced.

    Attributes:
        weight: weight of the replica in the training loss.
        sums: function that sums the replica's boundary gradients over all replicas.
        n_taken: mark of a variable in the capture → gradients taken of it so far.
        target: target of the first gradients at the boundary; None until they are taken.
    """

    weight: tf.Tensor
    sums: Sums
    n_taken: Counter[str] = field(default_factory=Counter)
    target: tf.Tensor | None = None


# Replicas are traced in separate threads, which run in turn.
_REPLICA: ContextVar[_Replica | None] = ContextVar("replica", default=None)


@contextmanager
def in_replica(weight: tf.Tensor, sums: Sums) -> Iterator[None]:
    """Trace one replica's step in its thread while a `ReplicaBoundary` is hooked; see `_Replica`."""
    token = _REPLICA.set(_Replica(weight=weight, sums=sums))
    try:
        yield
    finally:
        _REPLICA.reset(token)


class ReplicaBoundary:
    """Weights and sums gradients at the captured step's boundary; the rest of the step stays unchanged.

    The step may therefore have a loss of any form and use gradients in any way.

    Args:
        values: `Boundary.values` of every captured gradient. Tracing the same code again takes the same
            gradients in the same order, so that these names identify the gradients at the boundary.
        loss: captured loss: the step's return value, or the target of its gradients. The parts of a summed
            loss are not weighted.
        n_examples: examples in the captured batch, -1 for a free axis.

    Attributes:
        recorder: recorder of the traced step's optimizers and Keras variables.
    """

    def __init__(self, values: Collection[str], loss: Loss, n_examples: int) -> None:
        self.recorder = BoundaryRecorder()
        self._returns_loss = not loss.tensor.startswith(f"{TARGET_PREFIX}/")
        self._is_mean = loss.reduction == "mean"
        self._is_free = n_examples < 0
        self._values = frozenset(values)
        self._slugs = {name.rpartition("/")[0] for name in values}

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Hook the gradient functions while replicas are traced, and keep Keras from summing again.

        Keras 3 sums after clipping, and has no argument to declare that gradients are already summed.
        """
        with ExitStack() as hooks:
            hooks.enter_context(hooked_gradients(self._tape_hook, self._graph_hook))
            hooks.enter_context(self.recorder.recording_optimizers())
            hooks.enter_context(
                replaced(keras.optimizers.Optimizer, "_all_reduce_sum_gradients", _without_sums)
            )
            yield

    def loss_of(self, body: Body, batch: object) -> object:
        """Trace a step in a replica and return the loss of its share."""
        returned = body(_with_free_axis(batch) if self._is_free else batch, self.recorder)
        replica = _REPLICA.get()
        return returned if self._returns_loss or replica is None else replica.target

    def _tape_hook(self, gradient: Callable[..., object]) -> Callable[..., object]:
        def hooked(
            tape: tf.GradientTape,
            target: object,
            sources: object,
            output_gradients: object = None,
            *args: object,
            **kw: object,
        ) -> object:
            def take(upstream: object) -> object:
                return gradient(tape, target, sources, upstream, *args, **kw)

            return self._crossed(target, sources, output_gradients, take)

        return hooked

    def _graph_hook(self, gradients: Callable[..., object]) -> Callable[..., object]:
        def hooked(ys: object, xs: object, grad_ys: object = None, *args: object, **kw: object) -> object:
            def take(upstream: object) -> object:
                return gradients(ys, xs, upstream, *args, **kw)

            return self._crossed(ys, xs, grad_ys, take)

        return hooked

    def _crossed(
        self, targets: object, sources: object, upstream: object, take: Callable[[object], object]
    ) -> object:
        """Return a replica's gradients, with sums over all replicas for those that cross the boundary.

        The weight is applied where the backward pass begins, usually at a scalar, rather than at each
        gradient.
        """
        replica = _REPLICA.get()
        slugs = [boundary_slug(s) if is_trainable(s) else None for s in tf.nest.flatten(sources)]
        if replica is None or self._slugs.isdisjoint(slugs):
            return take(upstream)
        weighed = take(_weighed(targets, upstream, replica.weight) if self._is_mean else upstream)
        gradients: list[Gradient | None] = tf.nest.flatten(weighed)
        crossing: list[tuple[int, Gradient]] = []
        inner: list[tuple[int, Gradient]] = []
        for k, (slug, gradient) in enumerate(zip(slugs, gradients, strict=True)):
            if gradient is not None:
                crosses = slug is not None and self._crosses(slug, replica)
                (crossing if crosses else inner).append((k, gradient))
        for k, gradient in inner if self._is_mean else ():
            gradients[k] = _scaled(gradient, 1.0 / replica.weight)
        if crossing and replica.target is None:
            replica.target = self.recorder.targets.loss_of(targets, upstream)
        sums = replica.sums([gradient for _, gradient in crossing]) if crossing else ()
        for (k, _), total in zip(crossing, sums, strict=True):
            gradients[k] = total
        return tf.nest.pack_sequence_as(weighed, gradients)

    def _crosses(self, slug: str, replica: _Replica) -> bool:
        # TensorFlow's names are case-insensitive.
        number = replica.n_taken[slug.lower()]
        replica.n_taken[slug.lower()] += 1
        return f"{slug}/values{f'_{number}' if number else ''}" in self._values


def _with_free_axis(batch: object) -> object:
    """Batch with an unknown length in the trace, on which code may depend, such as Keras's metrics."""
    return tf.nest.map_structure(
        lambda part: tf.compat.v1.placeholder_with_default(part, (None, *part.shape[1:])), batch
    )


def _weighed(targets: object, upstream: object, weight: tf.Tensor) -> object:
    flat = tf.nest.flatten(targets)
    upstream_or_none = [None] * len(flat) if upstream is None else tf.nest.flatten(upstream)
    weighed = [
        tf.cast(weight, target.dtype) * (tf.ones_like(target) if own is None else own)
        for target, own in zip(flat, upstream_or_none, strict=True)
    ]
    return tf.nest.pack_sequence_as(targets, weighed)


def _scaled(gradient: Gradient, factor: tf.Tensor) -> Gradient:
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient * tf.cast(factor, gradient.dtype)
    rows = gradient.values * tf.cast(factor, gradient.values.dtype)
    return tf.IndexedSlices(rows, gradient.indices, gradient.dense_shape)


def _without_sums(original: Callable[..., object]) -> Callable[..., object]:
    del original
    return lambda optimizer, gradients: gradients  # noqa: ARG005 - a method of Keras's


Array: TypeAlias = np.ndarray[Any, Any]


class DistributedStep:
    """Training step that every worker runs on its own replicas' shares of a batch.

    A replica's gradients are scaled by its share of the global batch, so that they add up to the gradient of
    the global mean loss; gradients of a summed loss are not scaled.

    Attributes:
        parts_on_gpus: True if parts of a placed batch are on GPUs; known once the step is traced.
    Args:
        body: training step of a workload created in the distribution's scope.
        boundary: boundary at which a step's gradients are weighted and summed.
        structure: structure of `tf.TensorSpec` for one example, without the batch axis.
        batch_size: global batch size.
        weight_dtype: type of the replicas' weights.
        on_host: True if batches for GPUs stay in host memory until a step uses them.
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
            UnsupportedError: TensorFlow's strategy refuses the step; the message gives the reason.
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
        """Place this worker's examples of a batch on its replicas."""

        def share(context: tf.distribute.experimental.ValueContext) -> object:
            replica = self._replica(context)
            rows = slice(replica.start - self._start, replica.stop - self._start)
            with self._memory_for(replica):
                flat = [tf.constant(part[rows]) for part in batch]
            return tf.nest.pack_sequence_as(self._structure, flat)

        return self._distribution.experimental_distribute_values_from_function(share)

    def __call__(self, batch: tf.distribute.DistributedValues) -> Sequence[Array]:
        """Train on a placed batch and return the loss of each local replica."""
        return [loss.numpy() for loss in self._train(batch, self.weight)]

    def _on_all(self, batch: tf.distribute.DistributedValues, weight: tf.Tensor) -> tuple[tf.Tensor, ...]:
        with self._boundary.hooked():
            losses = self._distribution.run(self._on_one, args=(batch, weight))
        return tuple(self._distribution.experimental_local_results(losses))

    def _on_one(self, batch: object, weight: tf.Tensor) -> tf.Tensor:
        with in_replica(weight, sum_over_replicas):
            return self._boundary.loss_of(self._body, batch)

    def _memory_for(self, replica: Replica) -> contextlib.AbstractContextManager[object]:
        """Memory from which a replica on a GPU reads values; on other devices TensorFlow chooses it."""
        device = tf.DeviceSpec.from_string(replica.device)
        if device.device_type != "GPU":
            return contextlib.nullcontext()
        return tf.device("/CPU:0" if self._on_host else f"/GPU:{device.device_index}")  # type: ignore[no-any-return]

    def _replica(self, context: tf.distribute.experimental.ValueContext) -> Replica:
        return self._replicas[context.replica_id_in_sync_group]


def sum_over_replicas(gradients: Sequence[Gradient]) -> Sequence[Gradient]:
    """Sum the gradients of all replicas with the strategy in scope; called in a replica."""
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)  # type: ignore[no-any-return]
