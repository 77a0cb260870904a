"""Gradients of a worker as one vector, and vectors of all workers combined by a rule and taken apart again.

Rows of sparse gradients follow the dense ones: those that any worker has, zeros where a worker has none.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tensorflow as tf

from strategies.numerics.aggregators import aggregate
from strategies.numerics.collectives import apart, joined
from strategies.numerics.combine import merge_rows
from strategies.numerics.faults import colluding
from strategies.plan.aggregation import Aggregation
from strategies.plan.faults import Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Composition of a worker's vector.

    Attributes:
        dtype: of vectors, TensorFlow's number of it.
        dense: shape and type of each dense gradient, in the order of the vector.
        sparse: shape of each variable with rows, their type and that of their ids.
        gathered: contributions of workers are one tensor: vectors a matrix, rows one after the other.
    """

    dtype: int
    dense: tuple[tuple[tuple[int, ...], int], ...]
    sparse: tuple[tuple[tuple[int, ...], int, int], ...] = ()
    gathered: bool = False

    @property
    def size(self) -> int:
        return sum(math.prod(dims) for dims, _ in self.dense)


def as_vector(*gradients: tf.Tensor, dtype: int) -> tf.Tensor:
    """Dense gradients of any types and shapes one after the other, in one type: [d]."""
    if not gradients:
        return tf.zeros([0], tf.as_dtype(dtype))
    return joined(*(tf.cast(gradient, tf.as_dtype(dtype)) for gradient in gradients))


def marked_rows(
    rows: tf.Tensor, ids: tf.Tensor, *, owner: int, n_rows: int, dtype: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """A worker's rows, equal ids merged, with ids from which the worker can be told: int64 [n].

    Args:
        rows: [n, …]. ids: [n], from 0 to n_rows.
    """
    merged, unique = merge_rows(rows, ids)
    return tf.cast(merged, tf.as_dtype(dtype)), tf.cast(unique, tf.int64) + owner * n_rows


def combined_gradients(
    *tensors: tf.Tensor,
    layout: Layout,
    aggregation: Aggregation,
    shares: tuple[float, ...],
    seed: int,
    faults: tuple[Fault, ...] = (),
) -> list[tf.Tensor]:
    """Combine the gradients of all workers by a rule.

    Args:
        tensors: a vector of each worker; of each sparse gradient the rows of each worker, then the marked ids
            of each; what the rule has kept, and counts [3, n].
        faults: of all workers and kinds.
    Returns:
        each dense gradient; rows and ids of each sparse one; what the rule keeps; and counts: of each worker
        the steps whose result it had a part in, those in which it was not finite, and all steps.
    """
    n = aggregation.n
    inputs = iter(tensors)
    vectors = _of_workers(inputs, n, layout)
    unions = []
    for dims, _, _ in layout.sparse:
        rows, ids = (_together(inputs, n, layout) for _ in range(2))
        unions.append(_union(rows, ids, n, dims))
    *state, counts = inputs
    if unions:
        parts = [tf.unstack(tf.reshape(values, [n, -1]), n) for _, values in unions]
        vectors = [tf.concat(pieces, axis=0) for pieces in zip(vectors, *parts, strict=True)]
    vectors = colluding(vectors, counts[-1, 0], faults=faults)
    result = aggregate(vectors, state, aggregation=aggregation, shares=shares, seed=seed)
    sizes = [layout.size, *(tf.size(values) // n for _, values in unions)]
    pieces = tf.split(result.vector, sizes) if unions else [result.vector]
    dense = apart(pieces[0], shapes=[dims for dims, _ in layout.dense]) if layout.dense else []
    sparse: list[tf.Tensor] = []
    for (ids, _), piece, (dims, dtype, id_type) in zip(unions, pieces[1:], layout.sparse, strict=True):
        sparse += [tf.cast(tf.reshape(piece, [-1, *dims[1:]]), dtype), tf.cast(ids, id_type)]
    seen = tf.stack([result.chosen, tf.logical_not(result.finite), tf.ones([n], tf.bool)])
    return [
        *(tf.cast(value, dtype) for value, (_, dtype) in zip(dense, layout.dense, strict=True)),
        *sparse,
        *result.state,
        counts + tf.cast(seen, counts.dtype),
    ]


def _of_workers(inputs: Iterator[tf.Tensor], n: int, layout: Layout) -> list[tf.Tensor]:
    if layout.gathered:
        return tf.unstack(tf.reshape(next(inputs), [n, layout.size]), n)  # type: ignore[no-any-return]
    return [next(inputs) for _ in range(n)]


def _together(inputs: Iterator[tf.Tensor], n: int, layout: Layout) -> tf.Tensor:
    return next(inputs) if layout.gathered else tf.concat([next(inputs) for _ in range(n)], axis=0)


def _union(rows: tf.Tensor, ids: tf.Tensor, n: int, dims: Sequence[int]) -> tuple[tf.Tensor, tf.Tensor]:
    """Ids that any worker has, ascending: int64 [u], and each worker's rows of these: [n, u, …]."""
    owner, own = ids // dims[0], ids % dims[0]
    present, _ = tf.unique(tf.sort(own))
    count = tf.size(present)
    place = tf.cast(owner, tf.int32) * count + tf.searchsorted(present, own)
    values = tf.math.unsorted_segment_sum(rows, place, n * count)
    return present, tf.reshape(values, [n, count, *dims[1:]])
