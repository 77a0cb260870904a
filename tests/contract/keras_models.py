"""Compiled Keras models, as they are written for `model.fit`."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from model import BATCH_SIZE, LABELLED, N_CLASSES, N_STEPS, Model

from workloads import TrainStep
from workloads.keras_step import step_of_model

layers, losses, optimizers = keras.layers, keras.losses, keras.optimizers

TARGETS = {"label": LABELLED[1], "value": tf.TensorSpec((1,), tf.float32)}
WEIGHTED = (*LABELLED, tf.TensorSpec((), tf.float32))


def cross_entropy() -> keras.Loss:
    return losses.SparseCategoricalCrossentropy(from_logits=True)


def classifier():
    """Layers in a row that learn their input from the data, with metrics, statistics and dropout."""
    net = keras.Sequential(
        [
            layers.Dense(6, use_bias=False),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(N_CLASSES),
        ]
    )
    top_two = keras.metrics.SparseTopKCategoricalAccuracy(2)
    net.compile("adam", cross_entropy(), metrics=["accuracy", top_two], steps_per_execution=2)
    return net, LABELLED


def two_outputs():
    """A graph of layers with named inputs and outputs, and a loss, a weight and a metric for each."""
    inputs = {"left": keras.Input((2,), name="left"), "right": keras.Input((1,), name="right")}
    hidden = layers.Dense(5, "tanh")(layers.Concatenate()([inputs["left"], inputs["right"]]))
    outputs = {
        "label": layers.Dense(N_CLASSES, name="label")(hidden),
        "value": layers.Dense(1, name="value")(hidden),
    }
    net = keras.Model(inputs, outputs)
    net.compile(
        optimizers.SGD(0.1, momentum=0.9, clipnorm=0.5),
        loss={"label": cross_entropy(), "value": "mse"},
        loss_weights={"label": 0.7, "value": 0.3},
        metrics={"label": ["accuracy"], "value": ["mae"]},
    )
    named = {"left": tf.TensorSpec((2,), tf.float32), "right": tf.TensorSpec((1,), tf.float32)}
    return net, (named, TARGETS)


class Activity(keras.layers.Layer):
    """Adds a loss of its own."""

    def call(self, x):
        self.add_loss(0.1 * tf.reduce_mean(tf.square(x)))
        return x


class Penalised(keras.Model):
    """Layers of a subclass, made before their input is known, with losses beside the compiled one."""

    def __init__(self):
        super().__init__()
        self.hidden = layers.Dense(6, "relu", kernel_regularizer=keras.regularizers.L2(0.01))
        self.dropout = layers.Dropout(0.25)
        self.activity = Activity()
        self.out = layers.Dense(N_CLASSES, bias_regularizer="l1")

    def call(self, x, training=False):
        return self.out(self.activity(self.dropout(self.hidden(x), training=training)))


def penalised():
    net = Penalised()
    net.compile(optimizers.RMSprop(0.01), cross_entropy(), metrics=["accuracy"], run_eagerly=True)
    return net, LABELLED


def weighted():
    """Examples that weigh differently, in loss and metrics."""
    net = keras.Sequential([keras.Input((3,)), layers.Dense(N_CLASSES)])
    net.compile(optimizers.Adagrad(0.1), cross_entropy(), weighted_metrics=["accuracy"])
    return net, WEIGHTED


def summed():
    """Two losses that are sums over examples."""
    rows = keras.Input((3,))
    outputs = {"label": layers.Dense(N_CLASSES)(rows), "value": layers.Dense(1)(rows)}
    net = keras.Model(rows, outputs)
    entropy = losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    net.compile(optimizers.SGD(0.01), {"label": entropy, "value": losses.MeanSquaredError(reduction="sum")})
    return net, (LABELLED[0], TARGETS)


class OwnStep(keras.Model):
    """A train step of its own, as Keras's guide writes one."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


def own_step():
    rows = keras.Input((3,))
    outputs = layers.Dense(N_CLASSES)(layers.Dropout(0.2)(layers.Dense(5, "tanh")(rows)))
    net = OwnStep(rows, outputs)
    net.compile("adam", cross_entropy(), metrics=["accuracy"])
    return net, LABELLED


class OwnLoss(keras.Model):
    """A loss and metrics of its own, and no compiled loss."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.error = keras.metrics.Mean(name="error")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        loss = tf.reduce_mean(tf.square(y_pred - tf.one_hot(y, N_CLASSES))) + 0.1 * tf.reduce_mean(x)
        self.error.update_state(loss, sample_weight=tf.shape(y)[0])
        return loss + sum(self.losses)

    @property
    def metrics(self):
        return [self.error]


def own_loss():
    rows = keras.Input((3,))
    net = OwnLoss(rows, layers.Dense(N_CLASSES, kernel_regularizer="l2")(rows))
    net.compile(optimizers.AdamW(0.05, use_ema=True, ema_overwrite_frequency=2))
    return net, LABELLED


def mixed_precision():
    """Forward in float16, with a loss scale that Keras puts around the optimizer."""
    policy = keras.DTypePolicy("mixed_float16")
    rows = keras.Input((3,))
    hidden = layers.Dense(6, "tanh", dtype=policy)(rows)
    net = keras.Model(rows, layers.Dense(N_CLASSES, dtype="float32")(hidden))
    net.compile(optimizers.LossScaleOptimizer(optimizers.Adam(0.01), initial_scale=64.0), cross_entropy())
    return net, LABELLED


def mixed_precision_of_its_own():
    """A loss scale in a train step of its own, whose gradients are of a scaled loss."""
    rows = keras.Input((3,))
    net = OwnScaledStep(rows, layers.Dense(N_CLASSES)(rows))
    net.compile(optimizers.LossScaleOptimizer(optimizers.SGD(0.1), initial_scale=64.0), cross_entropy())
    return net, LABELLED


class OwnScaledStep(keras.Model):
    """Keras's own train step, whose loss one of its own keeps to itself."""

    def train_step(self, data):
        super().train_step(data)
        return {"examples": tf.shape(data[0])[0]}


Compiled = tuple[keras.Model, Any]
COMPILED: Mapping[str, Callable[[], Compiled]] = {
    "classifier": classifier,
    "two-outputs": two_outputs,
    "penalised": penalised,
    "weighted": weighted,
    "summed": summed,
    "own-step": own_step,
    "own-loss": own_loss,
    "mixed-precision": mixed_precision,
    "mixed-precision-of-its-own": mixed_precision_of_its_own,
}
"""Name → makes a compiled model, and the structure of one example."""


def compiled(name: str) -> Model:
    """The step that such a model stands for."""
    net, spec = COMPILED[name]()
    step = step_of_model(net, spec)
    own = net if isinstance(step, TrainStep) else None
    return Model(step=step, spec=spec, batches=batches_of(spec), own=own)


def batches_of(spec: Any) -> list[list[np.ndarray[Any, Any]]]:
    """Global batches of any structure of numbers, in its order."""
    random = np.random.default_rng(0)

    def part(s: tf.TensorSpec) -> np.ndarray[Any, Any]:
        shape = (BATCH_SIZE, *s.shape)
        drawn = random.integers(0, N_CLASSES, shape) if s.dtype.is_integer else random.uniform(0.5, 2, shape)
        return drawn.astype(s.dtype.as_numpy_dtype)

    return [[part(s) for s in tf.nest.flatten(spec)] for _ in range(N_STEPS)]
