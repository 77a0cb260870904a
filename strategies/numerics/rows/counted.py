"""Graphs for each number of rows that there may be: what sorts them must know how many it sorts."""

from collections.abc import Callable, Mapping

import tensorflow as tf

from strategies.numerics.rows.rows import Rows


def by_count(
    rows: Rows, n_finite: tf.Tensor, counts: Mapping[int, int], fn: Callable[[Rows, int], tf.Tensor]
) -> tf.Tensor:
    """What a function makes of the rows that are there.

    Args:
        n_finite: finite contributions, int32.
        counts: how many these may be → how many rows there are then, the usual number first.
        fn: of rows whose number is known, and the number of finite contributions; returns [d].
    """
    (usual, n_usual), *others = counts.items()

    def of_other() -> tf.Tensor:
        """One of the branches gives a vector, the others none: together they are this one."""
        results = [
            tf.cond(
                tf.equal(n_finite, number),
                lambda number=number, count=count: fn(rows.first(count), number),
                lambda: tf.zeros([0], rows.dtype),
            )
            for number, count in others
        ]
        return tf.ensure_shape(tf.concat(results, axis=0), rows.vectors[0].shape)

    if not others:
        return fn(rows.first(n_usual), usual)
    return tf.cond(tf.equal(n_finite, usual), lambda: fn(rows.first(n_usual), usual), of_other)
