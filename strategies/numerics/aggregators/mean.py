"""The mean of rows, which withstands no fault, and means of some of them."""

import tensorflow as tf

from strategies.numerics.rows.rows import Rows, within


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
        ordered = rows.ordered(chunk)
        # A row that is not there is as one that is.
        values = tf.where(rows.present[:, None], ordered, tf.broadcast_to(ordered[:1], tf.shape(ordered)))
        # No product of matrices: GPUs take these in fewer digits.
        return within(tf.reduce_sum(shares * values, axis=0), values)

    return rows.map(of_chunk)


def mean_of(values: list[tf.Tensor]) -> tf.Tensor:
    """The mean of some tensors of one shape, of equal ones these."""
    first, *rest = values
    if not rest:
        return first
    share = tf.constant(1.0 / len(values), first.dtype)
    scaled = first * share
    return first + tf.add_n([value * share - scaled for value in rest])
