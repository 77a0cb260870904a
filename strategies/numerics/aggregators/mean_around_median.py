"""The coordinate-wise mean of the values that are closest to the median."""

from collections.abc import Mapping
from functools import reduce

import tensorflow as tf

from strategies.numerics.aggregators.mean import mean_of
from strategies.numerics.aggregators.median import middle
from strategies.numerics.rows.chunks import Chunk
from strategies.numerics.rows.double_double import two_sum
from strategies.numerics.rows.rows import Rows
from strategies.numerics.rows.sorting_network import sorted_wires


def mean_around_median(rows: Rows, *, count: int) -> tf.Tensor:
    """Mean per coordinate of the values closest to the median, the coordinate's own.

    Of values that are equally close, those of rows that come first in the rows' order count.

    Args:
        count: how many values are taken, up to n.
    Returns:
        [d].
    Source:
        Xie et al. 2018, arXiv:1802.10116, "mean around median", with n − f for count.
    """
    return rows.map(lambda chunk: _of_chunk(rows, chunk, count))


def _of_chunk(rows: Rows, chunk: Chunk, count: int) -> tf.Tensor:
    """The closest values are neighbours in sorted order: a window that moves up to closer ones."""
    n, values = rows.n, rows.of_chunk(chunk)
    ascending = sorted_wires(values, range(n))
    centre = middle(ascending, n)
    window = [ascending[place] for place in range(count)]
    gaps = []
    for leaving in range(n - count):
        entering = ascending[leaving + count]
        gaps.append((centre - ascending[leaving]) - (entering - centre))
        window[leaving % count] = _chosen(gaps[-1] > 0, entering, window[leaving % count])
    around = mean_of(window)
    if not gaps:
        return around
    # Few operations that find no tie; what finds the places of some may take longer.
    narrowest = tf.reduce_min(reduce(tf.minimum, map(tf.abs, gaps)))
    return tf.cond(narrowest > 0, lambda: around, lambda: _by_row(around, values, ascending, centre, count))


def _chosen(condition: tf.Tensor, one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """`tf.where` of tensors of one shape, in half its time."""
    return tf.raw_ops.Select(condition=condition, x=one, y=other)


def _by_row(
    around: tf.Tensor,
    values: list[tf.Tensor],
    ascending: Mapping[int, tf.Tensor],
    centre: tf.Tensor,
    count: int,
) -> tf.Tensor:
    """Means [c], of which those where values on both sides of the median seem equally close are made anew.

    Whether they are is told by distances in twice the precision.
    """
    ties = []
    for leaving in range(len(values) - count):
        below, above = centre - ascending[leaving], ascending[leaving + count] - centre
        ties.append(tf.equal(below, above) & (below > 0))
    places = tf.where(reduce(tf.logical_or, ties))
    columns = tf.stack([tf.gather(row, places[:, 0]) for row in values], axis=1)
    # Halves first: the difference of two large numbers may be none.
    apart, rest = two_sum(columns * 0.5, tf.gather(centre, places) * -0.5)
    rest *= tf.sign(apart)
    by_rest = tf.argsort(rest, stable=True)
    order = tf.argsort(tf.gather(tf.abs(apart), by_rest, batch_dims=1), stable=True)
    chosen = tf.gather(by_rest, order[:, :count], batch_dims=1)
    anew = mean_of(tf.unstack(tf.transpose(tf.gather(columns, chosen, batch_dims=1)), count))
    return tf.tensor_scatter_nd_update(around, places, anew)
