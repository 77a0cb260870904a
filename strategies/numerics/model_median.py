"""The median of what several servers tell of a variable."""

import tensorflow as tf

from strategies.numerics.aggregators.median import middle
from strategies.numerics.rows.sorting_network import sorted_wires


def told_median(*values: tf.Tensor, n_lying: int) -> tf.Tensor:
    """The median of each element; of an even number of whole numbers the lower one of the middle two.

    Args:
        values: of the servers, of one shape and type; the last ones lie, and tell the opposite.
        n_lying: how many do.
    """
    n = len(values)
    honest = n - n_lying
    told = [value if place < honest else -value for place, value in enumerate(values)]
    if not values[0].dtype.is_floating:
        return sorted_wires(told, {(n - 1) // 2})[(n - 1) // 2]
    return middle(sorted_wires(told, {(n - 1) // 2, n // 2}), n)
