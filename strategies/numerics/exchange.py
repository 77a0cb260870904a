"""The two ends of what a worker's own transport moves, as TensorFlow functions for passes.

Their calls of Python have no token yet.
"""

import math
from collections.abc import Sequence
from itertools import islice

import tensorflow as tf

from strategies.numerics.collectives import apart, joined
from strategies.numerics.combine import concat_rows, merge_rows


def hand_over(
    *values: tf.Tensor, counts: tuple[int, ...], n_replicas: int, dtype: int
) -> tuple[tf.Operation]:
    """Give the sums of this worker's replicas to the transport, a vector for each share, and go on.

    Args:
        values: all tensors of the first replica, share after share, then those of the second, …; of one type.
        counts: tensors in each share.
        dtype: TensorFlow's number of the type.
    """
    rest = iter(values)
    by_replica = [[_joined(list(islice(rest, n)), dtype) for n in counts] for _ in range(n_replicas)]
    shares = [
        vectors[0] if n_replicas == 1 else tf.add_n(vectors) for vectors in zip(*by_replica, strict=True)
    ]
    return (tf.raw_ops.PyFunc(input=shares, token="", Tout=[]),)


def take_back(*, shares: tuple[tuple[tuple[int, ...], ...], ...], dtype: int) -> list[tf.Tensor]:
    """Wait for what comes, a vector for each share.

    Args:
        shares: shapes of the tensors in each. dtype: TensorFlow's number of the type.
    Returns:
        the tensors, share after share.
    """
    vectors = tf.raw_ops.PyFunc(input=[], token="", Tout=[tf.as_dtype(dtype)] * len(shares))
    return [
        tensor
        for vector, shapes in zip(vectors, shares, strict=True)
        for tensor in apart(tf.ensure_shape(vector, [sum(map(math.prod, shapes))]), shapes=shapes)
    ]


def hand_over_rows(*tensors: tf.Tensor, n_replicas: int, merged: tuple[bool, ...]) -> tuple[tf.Operation]:
    """Give rows and ids of this worker's replicas to the transport, and go on.

    Args:
        tensors: of each sparse gradient the rows [n, …] of each replica, then the ids [n] of each.
        merged: of each sparse gradient, whether rows of equal ids are summed.
    """
    vectors: list[tf.Tensor] = []
    rest = iter(tensors)
    for is_merged in merged:
        rows, ids = concat_rows(*islice(rest, 2 * n_replicas), weights=(1.0,) * n_replicas)
        if is_merged:
            rows, ids = merge_rows(rows, ids)
        vectors += [tf.reshape(rows, [-1]), ids]
    return (tf.raw_ops.PyFunc(input=vectors, token="", Tout=[]),)


def take_back_rows(
    *, dims: tuple[tuple[int, ...], ...], dtypes: tuple[tuple[int, int], ...]
) -> list[tf.Tensor]:
    """Wait for the rows of all workers and their ids.

    Args:
        dims: shape of a row of each sparse gradient.
        dtypes: TensorFlow's numbers of the types of its rows and ids.
    Returns:
        of each gradient the rows [n, …] and the ids [n].
    """
    types = [tf.as_dtype(dtype) for pair in dtypes for dtype in pair]
    vectors = tf.raw_ops.PyFunc(input=[], token="", Tout=types)
    taken: list[tf.Tensor] = []
    for rows, ids, shape in zip(vectors[::2], vectors[1::2], dims, strict=True):
        taken += [tf.reshape(rows, [tf.size(ids), *shape]), tf.reshape(ids, [-1])]
    return taken


def waypoint() -> tuple[tf.Operation]:
    """Nothing, to wait at."""
    return (tf.no_op(),)


def _joined(values: Sequence[tf.Tensor], dtype: int) -> tf.Tensor:
    return joined(*values) if values else tf.zeros([0], tf.as_dtype(dtype))
