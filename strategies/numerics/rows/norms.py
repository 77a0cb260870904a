"""Distances of rows from one vector."""

import tensorflow as tf

from strategies.numerics.rows.rows import Rows

_SAFE = {tf.float32: (1e-25, 1e37), tf.float64: (1e-280, 1e300)}
"""Sums of squares within which none of the larger terms has been lost."""


def distances_from(rows: Rows, centre: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Euclidean distances of all rows from a vector.

    Args:
        centre: [d].
    Returns:
        distances in some unit, [n], in the rows' order, and that unit, both float64; a distance itself may be
        larger than any number.
    """

    def squares(chunk: list[tf.Tensor]) -> tf.Tensor:
        centre = chunk[-1]
        sums = [tf.reduce_sum(tf.math.squared_difference(row, centre)) for row in rows.of_chunk(chunk)]
        return tf.cast(tf.stack(sums), tf.float64)

    sums = rows.fold(squares, tf.zeros([rows.n], tf.float64), tf.add, centre)
    low, high = _SAFE[rows.dtype]
    safe = (sums > low) & (sums < high) | tf.logical_not(rows.present)
    one = tf.constant(1.0, tf.float64)
    distances, unit = tf.cond(
        tf.reduce_all(safe), lambda: (tf.sqrt(sums), one), lambda: _scaled(rows, centre)
    )
    return distances, unit


def _scaled(rows: Rows, centre: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """By each row's own largest difference, so that no square is lost, in units of the largest of all."""
    zero = tf.zeros([rows.n], tf.float64)

    def largest(chunk: list[tf.Tensor]) -> tf.Tensor:
        return tf.reduce_max(tf.abs(_apart(rows, chunk)), axis=1)

    most = rows.fold(largest, zero, tf.maximum, centre)
    scale = tf.where(most > 0, most, tf.ones_like(most))[:, None]

    def squares(chunk: list[tf.Tensor]) -> tf.Tensor:
        return tf.reduce_sum(tf.square(_apart(rows, chunk) / scale), axis=1)

    unit = tf.reduce_max(scale)
    return most / unit * tf.sqrt(rows.fold(squares, zero, tf.add, centre)) * 2.0, unit


def _apart(rows: Rows, chunk: list[tf.Tensor]) -> tf.Tensor:
    """Halves of differences from the last vector of a chunk, [n, c]: the whole ones may be too large."""
    return tf.cast(rows.matrix(chunk), tf.float64) * 0.5 - tf.cast(chunk[-1], tf.float64) * 0.5
