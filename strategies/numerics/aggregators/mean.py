"""The mean of rows, which withstands no fault, and means of some of them."""

import tensorflow as tf

from strategies.numerics.rows.rows import Rows


def mean(rows: Rows, weights: tf.Tensor | None = None) -> tf.Tensor:
    """The mean of all rows that are there.

    Args:
        weights: [n] in the rows' order, positive; they need not add up to one. None for equal ones.
    Returns:
        [d]. Of equal rows these, and no larger than the largest however large.
    """
    weights = tf.ones([rows.n], tf.float64) if weights is None else tf.cast(weights, tf.float64)
    weights = tf.where(rows.present, weights, tf.zeros_like(weights))
    shares = tf.cast(weights / tf.reduce_sum(weights), rows.dtype)[:, None]

    def of_chunk(chunk: list[tf.Tensor]) -> tf.Tensor:
        # Of halves, since the difference of two large numbers may be none.
        halves = rows.ordered(chunk) * 0.5
        # No product of matrices: GPUs take these in fewer digits.
        return (halves[0] + tf.reduce_sum(shares * (halves - halves[0]), axis=0)) * 2.0

    return rows.map(of_chunk)


def mean_of(values: list[tf.Tensor]) -> tf.Tensor:
    """The mean of some tensors of one shape, of equal ones these."""
    first, *rest = values
    if not rest:
        return first
    share = tf.constant(1.0 / len(values), first.dtype)
    scaled = first * share
    return first + tf.add_n([value * share - scaled for value in rest])
