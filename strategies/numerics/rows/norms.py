"""Distances of rows from one vector, and moves of that vector towards them."""

import tensorflow as tf

from strategies.numerics.rows.chunks import Chunk
from strategies.numerics.rows.powers import power_of_two
from strategies.numerics.rows.rows import Rows

_SAFE = {tf.float32: (1e-25, 1e37), tf.float64: (1e-280, 1e300)}
"""Sums of squares within which none of the larger terms has been lost."""


def distances_from(rows: Rows, centre: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Euclidean distances of all rows from a vector.

    Args:
        centre: [d].
    Returns:
        distances, each in a unit of its own, and these units, powers of two: float64 [n] each. A distance
        itself may be larger than any number.
    """

    def squares(chunk: Chunk) -> tf.Tensor:
        sums = [tf.reduce_sum(tf.math.squared_difference(row, chunk[-1])) for row in rows.of_chunk(chunk)]
        return tf.cast(tf.stack(sums), tf.float64)

    sums = rows.fold(squares, tf.zeros([rows.n], tf.float64), tf.add, centre)
    low, high = _SAFE[rows.dtype]
    safe = (sums > low) & (sums < high) | tf.logical_not(rows.present)
    distances, units = tf.cond(
        tf.reduce_all(safe), lambda: (tf.sqrt(sums), tf.ones_like(sums)), lambda: _scaled(rows, centre)
    )
    return distances, units


def moved_towards(rows: Rows, centre: tf.Tensor, units: tf.Tensor, shares: tf.Tensor) -> tf.Tensor:
    """A vector, moved by a share of its difference from each row.

    Args:
        centre: [d].
        units: of each row's distance from it, [n].
        shares: float64 [n], times these units: a share itself may be smaller than any number.
    Returns:
        [d].
    """
    # Large differences are made smaller before they are taken, small ones larger afterwards.
    before = tf.unstack(tf.cast(tf.minimum(1 / units, 1.0), rows.dtype), rows.n)
    after = tf.unstack(tf.cast(tf.maximum(1 / units, 1.0) * shares, rows.dtype), rows.n)

    def of_chunk(chunk: Chunk) -> tf.Tensor:
        values = zip(rows.of_chunk(chunk), before, after, strict=True)
        return chunk[-1] + tf.add_n(
            [(row * small - chunk[-1] * small) * share for row, small, share in values]
        )

    return tf.ensure_shape(rows.map(of_chunk, centre), centre.shape)


def _scaled(rows: Rows, centre: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """In units of each row's own largest difference, so that no square is lost."""
    zero = tf.zeros([rows.n], tf.float64)

    def largest(chunk: Chunk) -> tf.Tensor:
        return tf.reduce_max(tf.abs(_half_apart(rows, chunk)), axis=1)

    most = rows.fold(largest, zero, tf.maximum, centre)
    units = power_of_two(tf.where(most > 0, most, tf.ones_like(most)), rows.dtype)

    def squares(chunk: Chunk) -> tf.Tensor:
        return tf.reduce_sum(tf.square(_half_apart(rows, chunk) / units[:, None]), axis=1)

    return tf.sqrt(rows.fold(squares, zero, tf.add, centre)) * 2.0, units


def _half_apart(rows: Rows, chunk: Chunk) -> tf.Tensor:
    """Halves of differences from the last vector of a chunk, [n, c]: the whole ones may be too large."""
    return tf.cast(rows.matrix(chunk), tf.float64) * 0.5 - tf.cast(chunk[-1], tf.float64) * 0.5
