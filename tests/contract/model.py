"""A model of the contract matrix: a step to capture and the global batches that it is fed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

# No number of replicas divides it, so that shards are never equally large.
BATCH_SIZE = 7
N_STEPS = 3
N_CLASSES = 4
ROWS = tf.TensorSpec((3,), tf.float32)
LABELLED = (ROWS, tf.TensorSpec((), tf.int32))


@dataclass(frozen=True, kw_only=True)
class Model:
    """A training step as its author wrote it.

    Attributes:
        spec: structure of one example. batches: components of each global batch, in the structure's order.
        owned: variables of the step, to run it as it is.
        own: step that its author would run, if `step` only stands for it.
    """

    step: Any
    spec: Any
    batches: Sequence[Sequence[Any]]
    owned: Sequence[Any] = ()
    own: Any = None


def on_rows(step: Any, owned: Sequence[Any] = ()) -> Model:
    """A model of three numbers each, for four steps."""
    random = np.random.default_rng(0)
    fed = [[random.normal(size=(BATCH_SIZE, 3)).astype(np.float32)] for _ in range(N_STEPS + 1)]
    return Model(step=step, spec=ROWS, batches=fed, owned=owned)


def on_labelled(step: Any, *, n_steps: int = N_STEPS, owned: Sequence[Any] = ()) -> Model:
    """A model of three numbers and a class each."""
    random = np.random.default_rng(0)
    fed = [
        [
            random.normal(size=(BATCH_SIZE, 3)).astype(np.float32),
            random.integers(0, N_CLASSES, BATCH_SIZE).astype(np.int32),
        ]
        for _ in range(n_steps)
    ]
    return Model(step=step, spec=LABELLED, batches=fed, owned=owned)


def mean_cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def values(*shape: int) -> np.ndarray[Any, Any]:
    """Different numbers in every place, none of them large."""
    return np.linspace(-0.5, 0.6, int(np.prod(shape))).reshape(shape).astype(np.float32)


def variable(name: str, *shape: int) -> tf.Variable:
    return tf.Variable(values(*shape), name=name)
