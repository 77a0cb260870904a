"""The mean of rows, which withstands no fault, and means of some of them."""

from collections.abc import Sequence

import tensorflow as tf

from strategies.numerics.rows.rows import Rows, within


def mean(rows: Rows) -> tf.Tensor:
    """The mean of all rows that are there.

    Returns:
        [d]. Of equal rows these.
    """
    # A row that is not there is as the first, and so adds nothing to it.
    share = tf.cast(1 / rows.n_present, rows.dtype)
    return rows.map(lambda chunk: mean_of(rows.of_chunk(chunk), share))


def weighted_mean(rows: Rows, weights: tf.Tensor) -> tf.Tensor:
    """The weighted mean of all rows that are there.

    Args:
        weights: [n] in the rows' order, positive; they need not add up to one.
    Returns:
        [d]. Of equal rows these, and no larger than the largest however large; a large row of little weight
        leaves the digits of the others.
    """
    weights = tf.cast(weights, tf.float64)
    weights = tf.where(rows.present, weights, tf.zeros_like(weights))
    shares = tf.unstack(tf.cast(weights / tf.reduce_sum(weights), rows.dtype), rows.n)

    def of_chunk(chunk: list[tf.Tensor]) -> tf.Tensor:
        values = rows.of_chunk(chunk)
        # No product of matrices: GPUs take these in fewer digits.
        return within(tf.add_n([share * row for share, row in zip(shares, values, strict=True)]), values)

    return rows.map(of_chunk)


def mean_of(values: Sequence[tf.Tensor], share: tf.Tensor | None = None) -> tf.Tensor:
    """The mean of some tensors of one shape, of equal ones these.

    Args:
        share: of each; one over their number where it is not told. Further values are as the first.
    """
    first, *rest = values
    if not rest:
        return first
    share = tf.constant(1.0 / len(values), first.dtype) if share is None else share
    # Halves of shares first: differences of large numbers, and sums of these, may be none. Taken away, as
    # graph optimisers would add both halves to each other.
    share *= 0.5
    scaled = first * share
    half = tf.add_n([scaled - value * share for value in rest])
    return first - half - half
