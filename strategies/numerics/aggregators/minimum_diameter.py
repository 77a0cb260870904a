"""Minimum-diameter averaging: the subset of rows that lie closest together."""

from dataclasses import replace
from itertools import combinations
from math import comb

import tensorflow as tf

from strategies.numerics.rows.distances import Selection, Squares, select_by_distances
from strategies.numerics.rows.rows import Rows


def minimum_diameter(rows: Rows, *, f: int) -> tf.Tensor:
    """The n − f rows of which the two farthest apart are closest, of equal subsets the first.

    Args:
        f: n ≥ 2f + 1, of all n rows; there are as many subsets as ways to leave f of them out. Rows that are
            not there are left out first; where these are more than f, all others are taken.
    Returns:
        their places in the rows' order, int32, ascending.
    Source:
        Rousseeuw 1985, Multivariate estimation with high breakdown point; El Mhamdi et al. 2020,
        arXiv:1905.03853, minimum-diameter averaging.
    """
    n, size = rows.n, rows.n - f
    subsets = tf.constant(list(combinations(range(n), size)), shape=[comb(n, size), size])

    def select(squares: Squares) -> Selection:
        # As whole numbers, of which equal ones are equal.
        both = rows.present[:, None] & rows.present[None, :]
        high = tf.where(both, squares.high, tf.fill([n, n], tf.constant(float("inf"), tf.float64)))
        flat = replace(squares, high=tf.reshape(high, [-1]), low=tf.reshape(squares.low, [-1]))
        widest = tf.reduce_max(_within(tf.reshape(flat.places(), [n, n]), subsets), axis=[1, 2])
        chosen = tf.gather(subsets, tf.argmin(widest, output_type=tf.int32))
        diameters = tf.reduce_max(_within(high, subsets), axis=[1, 2])
        least = tf.reduce_min(diameters)
        if not squares.error:
            return chosen, tf.zeros([], tf.bool)
        # Subsets with the same two farthest rows have one diameter; other pairs as far may really be nearer.
        above = tf.constant([[i < j for j in range(n)] for i in range(n)])
        as_far = above & (tf.abs(high - least) <= 2 * squares.error * least)
        several = tf.math.count_nonzero(as_far) > 1
        return chosen, several | squares.is_lost(least)

    if not f:
        return tf.range(rows.n_present)
    return tf.cond(
        rows.n_present < size,
        lambda: tf.range(rows.n_present),
        lambda: tf.reshape(select_by_distances(rows, select, n_nearest=size - 1), [-1]),
    )


def _within(matrix: tf.Tensor, subsets: tf.Tensor) -> tf.Tensor:
    """A matrix [n, n] of pairs of rows, for each subset: [n_subsets, size, size]."""
    return tf.gather(tf.gather(matrix, subsets), subsets, axis=2, batch_dims=1)
