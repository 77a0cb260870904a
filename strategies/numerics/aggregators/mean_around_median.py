"""The coordinate-wise mean of the values that are closest to the median."""

from functools import reduce

import tensorflow as tf

from strategies.numerics.aggregators.mean import mean_of
from strategies.numerics.aggregators.median import middle
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


def _of_chunk(rows: Rows, chunk: list[tf.Tensor], count: int) -> tf.Tensor:
    """The closest values are neighbours in sorted order: a window that moves up to closer ones."""
    n = rows.n
    ascending = sorted_wires(rows.in_any_order(chunk)[0], range(n))
    centre = middle(ascending, n)
    window = [ascending[place] for place in range(count)]
    ties = []
    for leaving in range(n - count):
        below, above = centre - ascending[leaving], ascending[leaving + count] - centre
        moves = below > above
        window[leaving % count] = tf.where(moves, ascending[leaving + count], window[leaving % count])
        ties.append(tf.equal(below, above) & (below > 0))
    values = mean_of(window)
    if not ties:
        return values
    tied = reduce(tf.logical_or, ties)
    return tf.cond(
        tf.reduce_any(tied), lambda: _by_row(values, rows.ordered(chunk), centre, tied, count), lambda: values
    )


def _by_row(
    values: tf.Tensor, ordered: tf.Tensor, centre: tf.Tensor, tied: tf.Tensor, count: int
) -> tf.Tensor:
    """Values [c], of which those where equally close ones lie on both sides of the median are made anew."""
    places = tf.where(tied)
    columns = tf.gather(tf.transpose(ordered), places[:, 0])
    apart = tf.abs(columns - tf.gather(centre, places))
    closest = tf.gather(columns, tf.argsort(apart, stable=True)[:, :count], batch_dims=1)
    anew = mean_of(tf.unstack(tf.transpose(closest), count))
    return tf.tensor_scatter_nd_update(values, places, anew)
