"""Gradients as products of two thin matrices."""

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
)
from strategies.plan.compressors import n_directions

FACTOR = "factor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """The projection of a gradient, as a matrix of rows × last axis, on `rank` directions of its columns.

    The directions come of one power iteration per step from those of the step before. decoded = P·Pᵀ·G with
    orthonormal P, so that ‖decoded − G‖ ≤ ‖G‖, and decoded = G where the rank of G is at most `rank` and the
    factor met all of it. Meant to be used with error feedback.

    Source:
        Vogels et al. 2019, arXiv:1905.13727, algorithm 1.
    """

    rank: int

    def states(self, dims: Dims, dtype: str) -> tuple[StateSpec, ...]:
        """The factor that the next iteration begins from, the same on every replica at first."""
        return (
            StateSpec(
                name=FACTOR, dims=(dims[-1], n_directions(dims, self.rank)), dtype=dtype, initial="normal"
            ),
        )

    def encode(self, gradient: tf.Tensor, *state: tf.Tensor) -> tuple[tf.Tensor, States]:
        """Words of P and of Q = Gᵀ·P; P and Q are this member's own."""
        (factor,) = state
        matrix = as_matrix(gradient)
        directions = orthonormal(tf.matmul(matrix, factor))
        right = right_factor(matrix, directions)
        words = [to_words(tf.reshape(part, [-1])) for part in (directions, right)]
        return tf.concat(words, axis=0), (next_factor(right, factor),)

    def decode(self, payload: tf.Tensor, dims: Dims, dtype: tf.DType) -> tf.Tensor:
        """P·Qᵀ."""
        n_rows, n = math.prod(dims[:-1]), n_directions(dims, self.rank)
        flat = from_words(payload[tf.newaxis], dtype)[0]
        left, right = tf.split(flat, [n_rows * n, dims[-1] * n])
        left, right = tf.reshape(left, [n_rows, n]), tf.reshape(right, [dims[-1], n])
        return tf.reshape(tf.matmul(left, right, transpose_b=True), dims)

    def lost(self, gradient: tf.Tensor, payload: tf.Tensor) -> tf.Tensor:
        """The difference."""
        return difference(self, gradient, payload)

    def loss_bound(self, gradient: Array) -> float:
        """All of it: directions that were right for the last gradient may miss this one."""
        return float(np.linalg.norm(gradient))


def as_matrix(gradient: tf.Tensor) -> tf.Tensor:
    """Rows × last axis; a convolution's kernel has its filters in columns."""
    return tf.reshape(gradient, [-1, gradient.shape[-1]])


def right_factor(matrix: tf.Tensor, directions: tf.Tensor) -> tf.Tensor:
    """Matrixᵀ·directions; as (directionsᵀ·matrix)ᵀ, for which Eigen need not transpose the large one."""
    return tf.transpose(tf.matmul(directions, matrix, transpose_a=True))


def orthonormal(columns: tf.Tensor) -> tf.Tensor:
    """Orthonormal columns that span the given ones; NaN everywhere where something is not finite."""
    finite = tf.reduce_all(tf.math.is_finite(columns))
    # What is not finite would leave a factorisation free to return anything.
    safe = tf.where(finite, columns, tf.zeros_like(columns))
    # Columns of one length each: their products neither overflow nor vanish.
    largest = tf.reduce_max(tf.abs(safe), axis=0, keepdims=True)
    directions, _ = tf.linalg.qr(tf.math.divide_no_nan(safe, largest))
    return tf.where(finite, directions, tf.fill(tf.shape(directions), tf.cast(float("nan"), columns.dtype)))


def next_factor(factor: tf.Tensor, before: tf.Tensor) -> tf.Tensor:
    """Where the next iteration begins: columns of length one; a column of zeros or worse stays as it was.

    A factor of zeros would never see a gradient again.
    """
    largest = tf.reduce_max(tf.abs(factor), axis=0, keepdims=True)
    usable = tf.reduce_all(tf.math.is_finite(factor), axis=0, keepdims=True) & (largest > 0)
    scaled = tf.math.divide_no_nan(factor, largest)
    unit = scaled / tf.sqrt(tf.maximum(tf.reduce_sum(tf.square(scaled), axis=0, keepdims=True), 1.0))
    return tf.where(usable, unit, before)
