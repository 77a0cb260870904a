"""Krum and Multi-Krum: rows whose nearest neighbours are closest."""

import tensorflow as tf

from strategies.numerics.rows.distances import Selection, Squares, nearest_sums, select_by_distances
from strategies.numerics.rows.rows import Rows


def krum(rows: Rows, *, f: tf.Tensor, m: tf.Tensor) -> tf.Tensor:
    """The m rows with the least sums of squared distances to their n − f − 2 nearest others.

    Krum is m = 1, Multi-Krum the mean of these rows. Some packages count n − f − 1 neighbours, or the row
    itself among them.

    Args:
        f: of the rows that are there, n ≥ 2f + 3. m: at most n − f − 2.
    Returns:
        their places in the rows' order, int32 [m], ascending.
    Source:
        Blanchard et al. 2017, Machine learning with adversaries: Byzantine tolerant gradient descent, §4.
    """

    n_nearest = rows.n_present - f - 2

    def select(squares: Squares) -> Selection:
        sums = nearest_sums(squares, n_nearest, rows.present)
        ranks = sums.ranks()
        return tf.boolean_mask(tf.range(rows.n), ranks < m), sums.is_doubtful(ranks, m)

    return select_by_distances(rows, select, n_nearest=n_nearest)
