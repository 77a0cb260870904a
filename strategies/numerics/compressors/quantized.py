"""Values rounded at random to a few levels."""

import math
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from strategies.numerics.compressors.codec import (
    Array,
    Dims,
    States,
    StateSpec,
    difference,
    from_words,
    to_words,
    words_per_value,
)
from strategies.plan.compressors import QSGD_BLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized:
    """Each value as one of s levels of its block's largest magnitude m, up or down so that its mean is right.

    E[decoded] = g, and for every value |decoded − g| ≤ m/s; E|decoded − g|² ≤ m²/(4s²). A byte per value and
    a magnitude per block of values travel; the source's entropy code for levels is not used.

    Source:
        Alistarh et al. 2017, arXiv:1610.02132, section 3.1, with blocks and their largest magnitude in place
        of the norm as in its section 4.
    """

    levels: int

    def states(self, dims: Dims, dtype: str) -> tuple[StateSpec, ...]:  # noqa: ARG002 - a Codec
        """A seed of the replica's own and the number of draws so far."""
        return (StateSpec(name="draws", dims=(2,), dtype="int64", initial="seed"),)

    def encode(self, gradient: tf.Tensor, *state: tf.Tensor) -> tuple[tf.Tensor, States]:
        """Words of the blocks' magnitudes, then of levels with their signs."""
        (draws,) = state
        n = math.prod(gradient.shape.as_list())
        blocks = tf.reshape(tf.pad(tf.reshape(gradient, [-1]), [[0, -n % QSGD_BLOCK]]), [-1, QSGD_BLOCK])
        largest = tf.reduce_max(tf.abs(blocks), axis=1)
        # The largest of NaN and others is not NaN on every device.
        seen = tf.where(tf.reduce_any(tf.math.is_nan(blocks), axis=1), largest * float("nan"), largest)
        share = tf.math.divide_no_nan(tf.abs(blocks), largest[:, tf.newaxis]) * self.levels
        uniform = tf.random.stateless_uniform(tf.shape(share), seed=draws, dtype=share.dtype)
        level = tf.minimum(tf.floor(share + uniform), float(self.levels)) * tf.sign(blocks)
        finite = tf.where(tf.math.is_finite(level), level, tf.zeros_like(level))
        words = [to_words(seen), to_words(tf.reshape(tf.cast(finite, tf.int8), [-1]))]
        return tf.concat(words, axis=0), (draws + tf.constant([0, 1], tf.int64),)

    def decode(self, payload: tf.Tensor, dims: Dims, dtype: tf.DType) -> tf.Tensor:
        """Level times magnitude."""
        return self.decode_sum(payload[tf.newaxis], dims, dtype)

    def decode_sum(self, payloads: tf.Tensor, dims: Dims, dtype: tf.DType) -> tf.Tensor:
        """The sum over members."""
        n = math.prod(dims)
        n_blocks = -(-n // QSGD_BLOCK)
        n_words = n_blocks * words_per_value(dtype)
        largest = from_words(payloads[:, :n_words], dtype)
        level = tf.cast(from_words(payloads[:, n_words:], tf.int8), dtype) / self.levels
        blocks = tf.reshape(level, [-1, n_blocks, QSGD_BLOCK]) * largest[:, :, tf.newaxis]
        return tf.reshape(tf.reshape(tf.reduce_sum(blocks, axis=0), [-1])[:n], dims)

    def lost(self, gradient: tf.Tensor, payload: tf.Tensor) -> tf.Tensor:
        """The difference."""
        return difference(self, gradient, payload)

    def loss_bound(self, gradient: Array) -> float:
        """A level of its block's largest magnitude for every value."""
        flat = np.abs(np.ravel(gradient))
        blocks = np.pad(flat, (0, -flat.size % QSGD_BLOCK)).reshape(-1, QSGD_BLOCK)
        n_of_block = np.minimum(QSGD_BLOCK, flat.size - QSGD_BLOCK * np.arange(len(blocks)))
        return float(np.sqrt(np.sum(n_of_block * np.square(blocks.max(axis=1) / self.levels))))
