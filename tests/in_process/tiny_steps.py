"""Tiny training steps to capture, and their check against the reference with two replicas."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from harness.verification.worker.check import check
from harness.worker.session.capture_store import InitialValues, in_float64, save
from strategies.capture.capture import Captured
from strategies.registry import make_plan
from strategies.summary import summarise
from strategies.tf_bridge.float64 import step_in_float64
from strategies.topology import Topology

SPEC = (tf.TensorSpec((3,)), tf.TensorSpec((), tf.int32))
N_CLASSES = 4
_numbers = itertools.count()


@dataclass
class Step:
    """A TrainStep as capture sees one."""

    loss: Any
    variables: Any
    optimizer: Any
    clip_global_norm: float | None = None
    reduction: str = "mean"


def fresh():
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)


def model(*layers):
    return keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(N_CLASSES)])


def hidden():
    return model(keras.layers.Dense(5, activation="tanh"))


def cross_entropy(net):
    def loss(batch):
        examples, labels = batch
        logits = tf.cast(net(examples, training=True), tf.float32)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))

    return loss


def train(net, optimizer, loss=None, clip=None):
    return Step(loss or cross_entropy(net), net.trainable_variables, optimizer, clip)


def dense_batches(n=3, size=5):
    rng = np.random.default_rng(0)
    return [
        [
            rng.normal(size=(size, 3)).astype("float32"),
            rng.integers(0, N_CLASSES, size=size).astype("int32"),
        ]
        for _ in range(n)
    ]


def assert_equivalent(
    captured: Captured, folder: Path, batches=None, strategies=("ps", "all-reduce"), **params
):
    """Two workers with parameter servers and two replicas with all-reduce end where the reference does.

    Five examples, so that shards differ; float64, so that only a real error is above the tolerance.
    """
    batches = dense_batches() if batches is None else batches
    folder = folder / f"capture_{next(_numbers)}"
    summary = summarise(captured.step, "tiny", captured.rows)
    save(folder, captured.step, captured.initial)
    step, initial = step_in_float64(captured.step), InitialValues(folder, float64=True)
    fed = [[in_float64(part) for part in batch] for batch in batches]
    shapes = {"ps": (1, 1), "partitioned-ps": (1, 1), "all-reduce": (2,)}
    for strategy in strategies:
        topology = Topology(replicas_per_task=shapes[strategy], batch_size=len(batches[0][0]))
        verdict = check(step, initial, make_plan(strategy, params, summary, topology), fed).verdict
        worst = max(verdict.variables, key=lambda v: v.update_error)
        assert verdict.equivalent, f"{strategy}: {worst.name} is off by {worst.update_error:.1e}"


def variable(captured: Captured, name: str):
    return next(v for v in captured.step.variables if v.name == name)
