"""Centered clipping: a vector that moves from step to step, by no row farther than a limit."""

import tensorflow as tf

from strategies.numerics.rows.norms import distances_from, moved_towards
from strategies.numerics.rows.rows import Rows


def centered_clipping(rows: Rows, centre: tf.Tensor, *, tau: float, iterations: int) -> tf.Tensor:
    """The vector of the step before, moved by the mean of clipped differences from it.

    Args:
        centre: [d], the result of the step before, zeros at first.
        tau: norm above which a difference is clipped, in units of the gradient.
        iterations: how many times it moves in a step.
    Returns:
        [d].
    Source:
        Karimireddy et al. 2021, arXiv:2012.10333, algorithm 2.
    """

    def clipped(turn: tf.Tensor, centre: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        distances, units = distances_from(rows, centre)
        shares = tf.minimum(units, tau / distances) / tf.cast(rows.n_present, tf.float64)
        shares = tf.where(rows.present, shares, tf.zeros_like(shares))
        return turn + 1, moved_towards(rows, centre, units, shares)

    _, centre = tf.while_loop(
        lambda turn, _: turn < iterations, clipped, [tf.constant(0), centre], parallel_iterations=1
    )
    return centre
