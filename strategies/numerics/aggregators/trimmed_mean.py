"""The coordinate-wise trimmed mean."""

import tensorflow as tf

from strategies.numerics.aggregators.mean import mean_of
from strategies.numerics.rows.rows import Rows
from strategies.numerics.rows.sorting_network import sorted_wires


def trimmed_mean(rows: Rows, *, f: int) -> tf.Tensor:
    """Mean per coordinate without the f largest and the f smallest values.

    Args:
        f: 2f < n.
    Returns:
        [d].
    Source:
        Yin et al. 2018, arXiv:1803.01498, definition 2, with f/n for its β.
    """
    kept = range(f, rows.n - f)

    def of_chunk(chunk: list[tf.Tensor]) -> tf.Tensor:
        ascending = sorted_wires(rows.of_chunk(chunk), kept)
        return mean_of([ascending[place] for place in kept])

    return rows.map(of_chunk)
