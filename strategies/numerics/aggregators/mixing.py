"""Pre-aggregation: means of some rows take the rows' place before a rule sees them."""

from dataclasses import replace

import tensorflow as tf

from strategies.numerics.rows.distances import Selection, Squares, select_by_distances
from strategies.numerics.rows.rows import Rows


def nearest_neighbour_mixing(rows: Rows, *, f: tf.Tensor) -> Rows:
    """Each row becomes the mean of its n − f nearest, itself among them.

    Source:
        Allouah et al. 2023, arXiv:2302.01772, algorithm 2.
    """
    n, size = rows.n, rows.n_present - f
    infinite = tf.fill([n], tf.constant(float("inf"), tf.float64))

    def select(squares: Squares) -> Selection:
        nearest, doubtful = [], []
        for i in range(n):
            high = tf.where(rows.present, squares.high[i], infinite)
            alike = tf.equal(squares.high, 0.0)
            own = replace(squares, high=high, low=squares.low[i], alike=alike)
            ranks = own.ranks()
            nearest.append(ranks < size)
            doubtful.append(rows.present[i] & own.is_doubtful(ranks, size))
        return tf.cast(tf.stack(nearest), tf.int32), tf.reduce_any(tf.stack(doubtful))

    chosen = tf.ensure_shape(select_by_distances(rows, select, n_nearest=size - 1), [n, n])
    mixing = tf.cast(chosen, rows.dtype) / tf.cast(size, rows.dtype)
    return replace(rows, mixing=mixing, squares=None)


def bucketing(rows: Rows, *, size: int, draw: tf.Tensor) -> Rows:
    """Rows in random order, in buckets of so many, of which each becomes a row: its mean.

    Args:
        size: of a bucket; the last may have fewer.
        draw: [2] seed of the order, which is another in each step.
    Source:
        Karimireddy et al. 2022, arXiv:2006.09365, algorithm 1.
    """
    n_buckets = -(-rows.n // size)
    drawn = tf.random.stateless_uniform([rows.n], draw, dtype=tf.float64)
    places = tf.argsort(tf.argsort(tf.where(rows.present, drawn, tf.ones_like(drawn))))
    n_present = (rows.n_present + size - 1) // size
    buckets = tf.where(tf.range(n_buckets) < n_present, tf.range(n_buckets), 0)
    within = tf.equal(buckets[:, None], (places // size)[None, :]) & rows.present[None, :]
    counts = tf.math.count_nonzero(within, axis=1, keepdims=True, dtype=rows.dtype)
    mixing = tf.cast(within, rows.dtype) / counts
    return replace(rows, n=n_buckets, n_present=n_present, mixing=mixing, squares=None)
