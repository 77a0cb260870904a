"""Datasets of arrays in memory: scikit-learn's digits, and ids with the frequencies of words."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


Array = npt.NDArray[np.generic]
_HELD_OUT = 5


def endless(*columns: Array, seed: int) -> "tf.data.Dataset":
    """Return rows of equally long arrays as examples, without end and in a new order each epoch.

    The order depends on `seed` and the epoch only, not on TensorFlow's global seed.
    """
    import tensorflow as tf

    tensors = tuple(tf.constant(column) for column in columns)
    n_rows = len(columns[0])

    def epoch(number: tf.Tensor) -> tf.data.Dataset:
        words = tf.stack([tf.constant(seed, tf.int64), number])
        order = tf.random.experimental.stateless_shuffle(tf.range(n_rows), seed=words)
        return tf.data.Dataset.from_tensor_slices(tuple(tf.gather(column, order) for column in tensors))

    return tf.data.Dataset.counter().flat_map(epoch)


def digits(*, held_out: bool = False) -> tuple[Array, Array]:
    """Load scikit-learn's 1,797 handwritten digits: images [n, 8, 8] float32 in 0..1, labels [n] int32.

    Args:
        held_out: True returns every fifth image, which no step trains on; False returns all others.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    chosen = (np.arange(len(bunch.target)) % _HELD_OUT == _HELD_OUT - 1) == held_out
    return (bunch.images[chosen] / 16.0).astype(np.float32), bunch.target[chosen].astype(np.int32)


def accuracy(model: "keras.Model", examples: Array, labels: Array) -> float:
    """Share of examples whose label has the largest logit; an example with a NaN logit never counts."""
    logits = np.asarray(model(examples, training=False))
    right = (logits.argmax(axis=-1) == labels) & np.isfinite(logits).all(axis=-1)
    return float(right.mean())


_EXPONENT = 1.1


def zipf_ids(rng: np.random.Generator, n_ids: int, *, size: tuple[int, ...]) -> npt.NDArray[np.int32]:
    """Draw ids 0 to n_ids - 1 with probability nearly proportional to 1 / (id + 1)^1.1.

    The discrete law is drawn through the inverse of the continuous one over [1, n_ids + 1), rounded down:
    no table of n_ids probabilities is made.

    Args:
        rng: source of the random numbers.
        n_ids: number of ids.
        size: shape of the result.
    Source:
        Zipf's law; inverse transform of the bounded Pareto distribution.
    """
    tail = (n_ids + 1.0) ** (1.0 - _EXPONENT)
    ranks = (1.0 - rng.random(size) * (1.0 - tail)) ** (1.0 / (1.0 - _EXPONENT))
    ids: npt.NDArray[np.int32] = np.minimum(ranks.astype(np.int64) - 1, n_ids - 1).astype(np.int32)
    return ids
