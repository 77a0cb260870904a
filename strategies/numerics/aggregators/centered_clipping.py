"""Centered clipping: a vector that moves from step to step, by no row farther than a limit."""

import tensorflow as tf

from strategies.numerics.rows.norms import distances_from
from strategies.numerics.rows.rows import Rows

_NOTHING = 1e-300


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

    def moved(turn: tf.Tensor, centre: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        distances, unit = distances_from(rows, centre)
        limit = tf.maximum(tau / unit, _NOTHING)
        shares = limit / tf.maximum(distances, limit) / tf.cast(rows.n_present, tf.float64)
        shares = tf.where(rows.present, shares, tf.zeros_like(shares))
        clipped = tf.unstack(tf.cast(shares, rows.dtype), rows.n)

        def of_chunk(chunk: list[tf.Tensor]) -> tf.Tensor:
            centre, wires = chunk[-1], rows.of_chunk(chunk)
            moves = [share * (row - centre) for share, row in zip(clipped, wires, strict=True)]
            return centre + tf.add_n(moves)

        return turn + 1, tf.ensure_shape(rows.map(of_chunk, centre), centre.shape)

    _, centre = tf.while_loop(
        lambda turn, _: turn < iterations, moved, [tf.constant(0), centre], parallel_iterations=1
    )
    return centre
