"""Squared distances between rows in twice the precision of float64, whatever the scale of the rows."""

import tensorflow as tf

from strategies.numerics.rows.double_double import square, sum_of, two_sum
from strategies.numerics.rows.powers import power_of_two
from strategies.numerics.rows.rows import Rows


def exact_squares(rows: Rows, n_nearest: tf.Tensor | int) -> tuple[tf.Tensor, tf.Tensor]:
    """Squared distances [n, n] in the rows' order, up to a common factor: high parts and low ones.

    The factor is a power of two. It makes the largest coordinate of the difference from the row's n-th
    nearest about one, for the row where that is least: sums over so many neighbours are of that size or
    larger. What is too far away for numbers of that scale is infinitely far, what is too close is nothing.

    Args:
        n_nearest: how many nearest others of a row decide, fewer than there are rows.
    """
    n = rows.n
    factor = _factor(rows, n_nearest)

    def of_chunk(chunk: list[tf.Tensor]) -> tf.Tensor:
        scaled = tf.cast(rows.matrix(chunk), tf.float64) * factor
        return tf.stack(tf.map_fn(lambda i: _from_row(scaled, i), tf.range(n), (tf.float64, tf.float64)))

    def added(total: tf.Tensor, more: tf.Tensor) -> tf.Tensor:
        high, error = two_sum(total[0], more[0])
        return tf.stack(two_sum(high, error + (total[1] + more[1])))

    both = rows.fold(of_chunk, tf.zeros([2, n, n], tf.float64), added)
    far = tf.logical_not(tf.math.is_finite(both[0]) & tf.math.is_finite(both[1]))
    infinite = tf.fill([n, n], tf.constant(float("inf"), tf.float64))
    return tf.where(far, infinite, both[0]), tf.where(far, tf.zeros([n, n], tf.float64), both[1])


def _from_row(scaled: tf.Tensor, i: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Squared distances of all rows from one."""
    return sum_of(*square(two_sum(scaled, -scaled[i])))


def _factor(rows: Rows, n_nearest: tf.Tensor | int) -> tf.Tensor:
    """The power of two that rows are multiplied by."""
    n = rows.n

    def of_chunk(chunk: list[tf.Tensor]) -> tf.Tensor:
        # Halves: the difference of two large numbers may be none.
        halves = tf.cast(rows.matrix(chunk), tf.float64) * 0.5
        return tf.map_fn(lambda i: tf.reduce_max(tf.abs(halves - halves[i]), axis=1), tf.range(n), tf.float64)

    farthest = rows.fold(of_chunk, tf.zeros([n, n], tf.float64), tf.maximum)
    both = rows.present[:, None] & rows.present[None, :]
    infinite = tf.fill([n, n], tf.constant(float("inf"), tf.float64))
    # A row's first is itself.
    neighbours = tf.gather(tf.sort(tf.where(both, farthest, infinite), axis=1), n_nearest, axis=1)
    nearest = tf.reduce_min(
        tf.where(neighbours > 0, neighbours, tf.fill([n], tf.constant(1e300, tf.float64)))
    )
    return 1 / power_of_two(nearest, tf.float64)
