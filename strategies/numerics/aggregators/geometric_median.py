"""The geometric median: the vector with the least sum of distances to all rows."""

import tensorflow as tf

from strategies.numerics.rows.norms import distances_from, moved_towards
from strategies.numerics.rows.rows import Rows


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
        distances, units = distances_from(rows, centre)
        distances = tf.maximum(distances, nu / units)
        # As shares of the nearest row's weight, of which none is lost.
        logs = tf.where(rows.present, tf.math.log(distances) + tf.math.log(units), farthest)
        nearest = tf.argmin(logs)
        near = tf.where(rows.present, distances[nearest] / distances, tf.zeros_like(distances))
        total = tf.reduce_sum(near * (units[nearest] / units))
        return turn + 1, moved_towards(rows, centre, units, near * (units[nearest] / total))

    farthest = tf.fill([rows.n], tf.constant(float("inf"), tf.float64))
    _, centre = tf.while_loop(
        lambda turn, _: turn < iterations, closer, [tf.constant(0), first], parallel_iterations=1
    )
    return centre
