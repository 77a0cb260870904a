"""The coordinate-wise median."""

import tensorflow as tf

from strategies.numerics.rows.rows import Rows
from strategies.numerics.rows.sorting_network import sorted_wires


def median(rows: Rows) -> tf.Tensor:
    """The median of each coordinate, of an even number the mean of the middle two; all n rows are there.

    Returns:
        [d].
    Source:
        Yin et al. 2018, arXiv:1803.01498, definition 1.
    """
    low, high = (rows.n - 1) // 2, rows.n // 2

    def of_chunk(chunk: list[tf.Tensor]) -> tf.Tensor:
        return middle(sorted_wires(rows.of_chunk(chunk), {low, high}), rows.n)

    return rows.map(of_chunk)


def middle(ascending: dict[int, tf.Tensor], n: int) -> tf.Tensor:
    """The median of n sorted values of which the middle ones are there."""
    low, high = ascending[(n - 1) // 2], ascending[n // 2]
    # Halves first: of large numbers the sum may be none. Taken away, lest optimisers halve the sum instead.
    return low if n % 2 else high * 0.5 - low * -0.5
