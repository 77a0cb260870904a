"""The geometric median: the vector with the least sum of distances to all rows."""

import tensorflow as tf

from strategies.numerics.aggregators.mean import weighted_mean
from strategies.numerics.rows.norms import distances_from
from strategies.numerics.rows.rows import Rows

_NOTHING = 1e-300


def geometric_median(rows: Rows, first: tf.Tensor, *, iterations: int, nu: float) -> tf.Tensor:
    """The smoothed Weiszfeld iteration: a mean weighted by inverse distances from the one before.

    It should begin with a vector that is close already where rows are faulty, such as the coordinate-wise
    median; the paper begins with a mean.

    Args:
        first: [d], what it begins with.
        iterations: how many times it is repeated.
        nu: distance below which a row is not given more weight, in units of the gradient.
    Returns:
        [d].
    Source:
        Pillutla et al. 2022, arXiv:1912.13445, algorithm 2.
    """

    def closer(turn: tf.Tensor, centre: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        # As shares of the nearest row's, of which none is lost.
        distances, unit = distances_from(rows, centre)
        distances = tf.maximum(distances, tf.maximum(nu / unit, _NOTHING))
        nearest = tf.reduce_min(tf.where(rows.present, distances, tf.fill([rows.n], distances.dtype.max)))
        moved = weighted_mean(rows, nearest / distances)
        return turn + 1, tf.ensure_shape(moved, centre.shape)

    _, centre = tf.while_loop(
        lambda turn, _: turn < iterations, closer, [tf.constant(0), first], parallel_iterations=1
    )
    return centre
