"""One bit per value."""

import math
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from strategies.numerics.compressors.codec import (
    Array,
    Dims,
    States,
    StateSpec,
    from_words,
    to_words,
    words_per_value,
)

_BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """The sign of each value, and the mean magnitude of all, which every value gets; zero counts as positive.

    ‖decoded − g‖² = (1 − ‖g‖₁²/(n·‖g‖₂²))·‖g‖₂². Converges with error feedback only.

    Source:
        Karimireddy et al. 2019, arXiv:1901.09847, algorithm 1 and lemma 8.
    """

    def states(self, dims: Dims, dtype: str) -> tuple[StateSpec, ...]:  # noqa: ARG002 - a Codec
        """None."""
        return ()

    def encode(self, gradient: tf.Tensor, *state: tf.Tensor) -> tuple[tf.Tensor, States]:
        """Words of the mean magnitude, then 32 signs a word."""
        flat = tf.reshape(gradient, [-1])
        n = math.prod(gradient.shape.as_list())
        positive = tf.pad(tf.cast(flat >= 0, tf.int32), [[0, -n % _BITS]])
        shifted = tf.bitwise.left_shift(tf.reshape(positive, [-1, _BITS]), tf.range(_BITS))
        # Dividing first keeps the sum of large values finite.
        scale = tf.reduce_sum(tf.abs(flat) / n)
        return tf.concat([to_words(tf.reshape(scale, [1])), tf.reduce_sum(shifted, axis=1)], axis=0), state

    def decode(self, payload: tf.Tensor, dims: Dims, dtype: tf.DType) -> tf.Tensor:
        """Plus or minus the mean magnitude."""
        return self.decode_sum(payload[tf.newaxis], dims, dtype)

    def decode_sum(self, payloads: tf.Tensor, dims: Dims, dtype: tf.DType) -> tf.Tensor:
        """The sum over members."""
        n, n_words = math.prod(dims), words_per_value(dtype)
        scales = from_words(payloads[:, :n_words], dtype)
        bits = tf.bitwise.right_shift(payloads[:, n_words:, tf.newaxis], tf.range(_BITS))
        positive = tf.reshape(tf.bitwise.bitwise_and(bits, 1), [tf.shape(payloads)[0], -1])[:, :n]
        signed = tf.where(positive > 0, scales, -scales)
        return tf.reshape(tf.reduce_sum(signed, axis=0), dims)

    def lost(self, gradient: tf.Tensor, payload: tf.Tensor) -> tf.Tensor:
        """The difference, of signs that need not be unpacked."""
        scale = from_words(payload[tf.newaxis, : words_per_value(gradient.dtype)], gradient.dtype)[0, 0]
        return tf.where(gradient >= 0, gradient - scale, gradient + scale)

    def loss_bound(self, gradient: Array) -> float:
        """What is lost, exactly."""
        squares = float(np.sum(np.square(gradient))) - float(np.sum(np.abs(gradient))) ** 2 / gradient.size
        return math.sqrt(max(squares, 0.0))
