"""The lexicographic order of rows: by their first coordinates, of equal ones by their second ones, …"""

from collections.abc import Sequence

import tensorflow as tf

_FIRST_LENGTH = 64
_LAST_LENGTH = 1 << 15


def lexicographic_order(vectors: Sequence[tf.Tensor], finite: tf.Tensor) -> tf.Tensor:
    """Indices of rows in lexicographic order; what is not finite comes last.

    Rows are told apart at the first coordinate in which any two of a group of equal ones differ, then at the
    next, until all are told apart or at the end: seldom more than a glance at the first chunk.

    Args:
        vectors: [d] each.
        finite: bool [n], whether a row counts.
    Returns:
        int32 [n]; of equal rows in any order.
    """
    n = len(vectors)
    size = tf.size(vectors[0])
    n_finite = tf.math.count_nonzero(finite, dtype=tf.int32)

    def tied(rank: tf.Tensor, start: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
        n_groups = tf.reduce_max(tf.where(finite, rank, -1)) + 1
        return (start < size) & (n_groups < n_finite)

    def told_apart(
        rank: tf.Tensor, start: tf.Tensor, length: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        taken = tf.minimum(length, size - start)
        part = tf.stack([tf.slice(vector, [start], [taken]) for vector in vectors])
        leader = tf.argmax(tf.equal(rank[:, None], rank[None, :]), axis=1, output_type=tf.int32)
        differs = tf.reduce_any(tf.not_equal(part, tf.gather(part, leader)) & finite[:, None], axis=0)
        place = tf.argmax(differs, output_type=tf.int32)
        refined = tf.cond(
            tf.reduce_any(differs), lambda: _refined(rank, tf.gather(part, place, axis=1), n), lambda: rank
        )
        after = tf.where(tf.reduce_any(differs), place + 1, taken)
        return refined, start + after, tf.minimum(length * 8, _LAST_LENGTH)

    rank, _, _ = tf.while_loop(
        tied,
        told_apart,
        [tf.where(finite, 0, n), tf.constant(0), tf.constant(_FIRST_LENGTH)],
        parallel_iterations=1,
    )
    return tf.argsort(rank, stable=True)


def _refined(rank: tf.Tensor, values: tf.Tensor, n: int) -> tf.Tensor:
    """Ranks of groups that a coordinate divides further; that of what does not count stays.

    Args:
        rank: int32 [n], of groups from 0. values: [n], of the coordinate.
    """
    # What is not a number would upset the order of all.
    values = tf.where(rank < n, values, tf.zeros_like(values))
    by_value = tf.argsort(values, stable=True)
    order = tf.gather(by_value, tf.argsort(tf.gather(rank, by_value), stable=True))
    ranks, sorted_values = tf.gather(rank, order), tf.gather(values, order)
    begins = tf.not_equal(ranks[1:], ranks[:-1]) | tf.not_equal(sorted_values[1:], sorted_values[:-1])
    groups = tf.concat([[0], tf.cumsum(tf.cast(begins, tf.int32))], axis=0)
    back = tf.argsort(order)
    return tf.where(rank < n, tf.gather(groups, back), rank)
