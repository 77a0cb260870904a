"""An embedding whose batches repeat ids, and plain loops that train it as people write them by hand.

A worker loads this file as a user's; `plain_loops` is a job.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from harness.worker.process.job import JobState
from workloads import TrainStep

BATCH = 7
SHARES = (4, 3)
_NORM = 0.05
OPTIMIZERS: Mapping[str, Callable[..., keras.optimizers.Optimizer]] = {
    "adam": lambda: keras.optimizers.Adam(0.1),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.1),
    "sgd-clipnorm": lambda clipnorm=_NORM: keras.optimizers.SGD(0.5, clipnorm=clipnorm),
}


class RepeatedRows:
    name = "repeated-rows"
    batch_size = BATCH
    flops_per_example = None

    def __init__(self, optimizer: str) -> None:
        self._optimizer = optimizer

    def train_step(self) -> TrainStep:
        model, optimizer = model_of(), OPTIMIZERS[self._optimizer]()
        optimizer.build(model.trainable_variables)
        return TrainStep(
            loss=lambda batch: tf.reduce_mean(squares(model, batch)),
            variables=model.trainable_variables,
            optimizer=optimizer,
        )

    def dataset(self, seed: int) -> tf.data.Dataset:
        ids = tf.random.stateless_uniform((4 * BATCH, 5), (seed, 1), 0, 4, tf.int32)
        labels = tf.random.stateless_normal((4 * BATCH, 1), (seed, 2), dtype=tf.float64)
        return tf.data.Dataset.from_tensor_slices((ids, labels))


def model_of() -> keras.Model:
    model = keras.Sequential(
        [
            keras.layers.Embedding(
                6, 3, keras.initializers.RandomUniform(seed=1), dtype="float64", name="table"
            ),
            keras.layers.Flatten(dtype="float64"),
            keras.layers.Dense(
                1, kernel_initializer=keras.initializers.GlorotUniform(seed=2), dtype="float64", name="out"
            ),
        ]
    )
    model.build((None, 5))
    return model


def squares(model: keras.Model, batch: Sequence[tf.Tensor]) -> tf.Tensor:
    """The loss of each example."""
    return keras.losses.mean_squared_error(batch[1], model(batch[0]))


def plain_loops(state: JobState, batches: Sequence[Sequence[Any]]) -> dict[str, Sequence[Mapping[str, Any]]]:
    """Optimizer → all variables after training on one device, and on two under TensorFlow's strategy."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    devices = [tf.config.LogicalDeviceConfiguration()] * len(SHARES)
    tf.config.set_logical_device_configuration(cpu, devices)
    return {name: (_alone(name, batches), _mirrored(name, batches)) for name in OPTIMIZERS}


def _alone(name: str, batches: Sequence[Sequence[Any]]) -> dict[str, Any]:
    keras.backend.clear_session()
    model, optimizer = model_of(), OPTIMIZERS[name]()

    @tf.function
    def step(batch: Sequence[tf.Tensor]) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(squares(model, batch))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    for batch in batches:
        step(batch)
    return {v.path: v.numpy() for v in [*model.variables, *optimizer.variables]}


def _mirrored(name: str, batches: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Step written as in the guide, which leaves sums to Keras.

    Keras clips what a replica has by itself: whoever means the norm of the sums clips these by hand, and
    hands each replica its part of them.
    """
    keras.backend.clear_session()
    n = len(SHARES)
    strategy = tf.distribute.MirroredStrategy([f"/cpu:{i}" for i in range(n)])
    is_clipped = name == "sgd-clipnorm"
    with strategy.scope():
        model = model_of()
        optimizer = OPTIMIZERS[name](clipnorm=None) if is_clipped else OPTIMIZERS[name]()
        optimizer.build(model.trainable_variables)

    def in_replica(batch: Sequence[tf.Tensor]) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(squares(model, batch)) / BATCH
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        if is_clipped:
            context = tf.distribute.get_replica_context()
            sums = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
            gradients = [_divided(tf.clip_by_norm(tensor, _NORM), n) for tensor in sums]
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    step = tf.function(lambda batch: strategy.run(in_replica, args=(batch,)))
    for batch in batches:
        edges = np.cumsum((0, *SHARES))
        shares = [[part[a:b] for part in batch] for a, b in pairwise(edges)]
        step(
            strategy.experimental_distribute_values_from_function(
                lambda context, shares=shares: [
                    tf.constant(p) for p in shares[context.replica_id_in_sync_group]
                ]
            )
        )
    return {v.path: v.numpy() for v in [*model.variables, *optimizer.variables]}


def _divided(gradient: Any, n: int) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / n, gradient.indices, gradient.dense_shape)
    return gradient / n
