"""Squared distances between all pairs of rows, in one pass over their coordinates."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from strategies.numerics.rows.chunks import Chunk, folded
from strategies.numerics.rows.rows import Rows

BLOCK = 256
"""Squares that are added up in their own type: 32 roundings of a vector of eight, and three of these."""


def finite_and_squares(
    vectors: Sequence[tf.Tensor], *, distances: bool
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """What one pass over vectors finds out: to read them takes longer than to compute.

    Args:
        vectors: [d] each.
        distances: whether these are asked for.
    Returns:
        whether each vector has finite coordinates alone, bool [n], and squared distances, float64 [n, n], of
        differences and squares in the vectors' own type: infinite where that is too small.
    """
    n = len(vectors)
    n_pairs = n * (n - 1) // 2 if distances else 0

    def of_chunk(chunk: Chunk) -> tf.Tensor:
        # Zero times what is finite is zero, and otherwise not a number.
        zeros = [tf.reduce_sum(part * 0.0) for part in chunk]
        found = tf.cast(tf.stack(zeros), tf.float64)
        return tf.concat([found, _triangle(chunk)], axis=0) if n_pairs else found

    sums = folded(vectors, of_chunk, tf.zeros([n + n_pairs], tf.float64))
    return tf.equal(sums[:n], 0.0), _matrix(sums[n:], n) if distances else None


def pairwise_squares(rows: Rows, dtype: tf.DType) -> tf.Tensor:
    """Squared distances of all pairs, float64 [n, n], by differences and squares in a type."""

    def of_chunk(chunk: Chunk) -> tf.Tensor:
        return _triangle([tf.cast(row, dtype) for row in rows.of_chunk(chunk)])

    if rows.n == 1:
        return tf.zeros([1, 1], tf.float64)
    triangle = rows.fold(of_chunk, tf.zeros([rows.n * (rows.n - 1) // 2], tf.float64))
    return _matrix(triangle, rows.n)


def _triangle(rows: Sequence[tf.Tensor]) -> tf.Tensor:
    """Squared distances of each row from those before it, row after row, float64.

    Squares are added up in their own type within a block and in float64 from there on.
    """
    blocks = _in_blocks(rows)
    sums = [
        tf.reduce_sum(tf.math.squared_difference(row, earlier), axis=1)
        for i, row in enumerate(blocks)
        for earlier in blocks[:i]
    ]
    return tf.reduce_sum(tf.cast(tf.stack(sums), tf.float64), axis=1)


def _in_blocks(rows: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Rows [c] as [c / BLOCK, BLOCK], with zeros at the end where they are too short."""
    missing = -tf.size(rows[0]) % BLOCK
    whole = tf.cond(
        tf.equal(missing, 0), lambda: list(rows), lambda: [tf.pad(row, [[0, missing]]) for row in rows]
    )
    return [tf.reshape(row, [-1, BLOCK]) for row in whole]


def _matrix(triangle: tf.Tensor, n: int) -> tf.Tensor:
    """[n, n] of what a triangle lists."""
    # What overflows is infinite, or not a number.
    infinite = tf.fill(tf.shape(triangle), tf.constant(float("inf"), tf.float64))
    known = tf.concat([tf.where(tf.math.is_finite(triangle), triangle, infinite), [0.0]], axis=0)
    row, column = np.indices((n, n))
    later, earlier = np.maximum(row, column), np.minimum(row, column)
    places = np.where(row == column, n * (n - 1) // 2, later * (later - 1) // 2 + earlier)
    return tf.gather(known, tf.constant(places, tf.int32))
