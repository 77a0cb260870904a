"""Bulyan: rows chosen by Krum one after the other, then a mean around the median of each coordinate."""

import tensorflow as tf

from strategies.numerics.rows.distances import Selection, Squares, nearest_sums, select_by_distances
from strategies.numerics.rows.rows import Rows


def bulyan(rows: Rows, *, f: tf.Tensor, rounds: tf.Tensor) -> tf.Tensor:
    """The rows of the first phase: in each round Krum's best of those left is chosen, and leaves them.

    A row's neighbours are those left: of p rows the nearest p − f − 2 count, but one at least. The second
    phase is the mean around the median of the chosen ones, of rounds − 2f values for each coordinate.

    Args:
        f: of the rows that are there, n ≥ 4f + 3.
        rounds: n − 2f as in the paper; AggregaThor's code makes n − 2f − 2.
    Returns:
        their places in the rows' order, int32 [rounds], ascending.
    Source:
        El Mhamdi et al. 2018, arXiv:1802.07927, §4; Damaskinos et al. 2019, AggregaThor.
    """
    n = rows.n_present

    def select(squares: Squares) -> Selection:
        def round_of(
            turn: tf.Tensor, left: tf.Tensor, doubtful: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            n_others = n - turn - 1
            n_nearest = tf.minimum(tf.maximum(n_others - f - 1, 1), n_others)
            sums = nearest_sums(squares, n_nearest, left)
            ranks = sums.ranks()
            # One row alone is the best.
            decides = (n_nearest > 0) & sums.is_doubtful(ranks, 1)
            return turn + 1, left & (ranks > 0), doubtful | decides

        _, left, doubtful = tf.while_loop(
            lambda turn, _left, _doubtful: turn < rounds,
            round_of,
            [tf.constant(0), rows.present, tf.zeros([], tf.bool)],
            parallel_iterations=1,
        )
        return tf.boolean_mask(tf.range(rows.n), rows.present & tf.logical_not(left)), doubtful

    return select_by_distances(rows, select, n_nearest=tf.maximum(n - f - 2, 1))
