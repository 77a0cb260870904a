"""Gradients of a worker as one vector; combining all workers' vectors by a rule and splitting the result.

Rows of sparse gradients follow the dense ones: the rows that any worker has, zeros for workers without them.
"""

import itertools
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
    """Layout of a worker's vector.

    Attributes:
        dtype: TensorFlow's number of the vectors' type.
        dense: shape and type of each dense gradient, in the vector's order.
        sparse: shape of each variable with a sparse gradient, type of its rows and type of its ids.
        gathered: True if all workers' contributions are one tensor: vectors as a matrix, rows concatenated.
    """

    dtype: int
    dense: tuple[tuple[tuple[int, ...], int], ...]
    sparse: tuple[tuple[tuple[int, ...], int, int], ...] = ()
    gathered: bool = False

    @property
    def size(self) -> int:
        return sum(math.prod(dims) for dims, _ in self.dense)


def as_vector(*gradients: tf.Tensor, dtype: int) -> tf.Tensor:
    """Concatenate dense gradients of any types and shapes in one type: [d]."""
    if not gradients:
        return tf.zeros([0], tf.as_dtype(dtype))
    return joined(*(tf.cast(gradient, tf.as_dtype(dtype)) for gradient in gradients))


def marked_rows(
    rows: tf.Tensor, ids: tf.Tensor, *, owner: int, n_rows: int, dtype: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Worker's rows, equal ids merged, with ids that encode the worker: int64 [n].

    Args:
        rows: tensor [n, …]. ids: tensor [n], from 0 to n_rows - 1.
    """
    merged, unique = merge_rows(rows, ids)
    return tf.cast(merged, tf.as_dtype(dtype)), tf.cast(unique, tf.int64) + owner * n_rows


def take_all(
    queue: tf.Tensor, *, n: int, size: int, rows: tuple[tuple[int, ...], ...], dtype: int
) -> list[tf.Tensor]:
    """Take the tensors that n workers have put into a queue, one element each, in any order.

    Args:
        queue: handle; an element is the worker's number, its vector [size], and for each sparse gradient its
            rows and marked ids.
        rows: shape of one row of each sparse gradient.
        dtype: TensorFlow's number of the type of vectors and rows.
    Returns:
        Vectors in the order of workers, flat; for each sparse gradient all rows and all marked ids.
    """
    wanted = tf.as_dtype(dtype)
    types = [wanted, *(kind for _ in rows for kind in (wanted, tf.int64))]
    shapes = [[size], *(shape for row in rows for shape in ([None, *row], [None]))]
    arrays = [
        tf.TensorArray(kind, n, infer_shape=False, element_shape=shape)
        for kind, shape in zip(types, shapes, strict=True)
    ]

    def one(turn: tf.Tensor, *before: tf.TensorArray) -> tuple[object, ...]:
        worker, *tensors = tf.raw_ops.QueueDequeueV2(handle=queue, component_types=[tf.int64, *types])
        place = tf.cast(tf.reshape(worker, []), tf.int32)
        return turn + 1, *(a.write(place, tensor) for a, tensor in zip(before, tensors, strict=True))

    _, *filled = tf.while_loop(
        lambda turn, *_: turn < n, one, [tf.constant(0), *arrays], parallel_iterations=1
    )
    return [array.concat() for array in filled]


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
        tensors: every worker's vector; for each sparse gradient every worker's rows, then every worker's
            marked ids; the rule's state, and counts [3, n].
    Returns:
        Each dense gradient; rows and ids of each sparse one; the rule's next state; and counts per worker:
        steps in whose result it had a part, steps in which it was not finite, and all steps.
    """
    n = aggregation.n
    inputs = iter(tensors)
    blocks = _of_workers(inputs, n, layout)
    unions = []
    for dims, _, _ in layout.sparse:
        rows, ids = (_together(inputs, n, layout) for _ in range(2))
        unions.append(_union(rows, ids, n, dims))
    *state, counts = inputs
    if unions:
        blocks = _with_rows(blocks, [tf.reshape(values, [n, -1]) for _, values in unions])
    blocks = colluding(blocks, counts[-1, 0], faults=faults)
    result = aggregate(blocks, state, aggregation=aggregation, shares=shares, seed=seed)
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
    shape = [n if layout.gathered else 1, layout.size]
    return [tf.reshape(next(inputs), shape) for _ in range(1 if layout.gathered else n)]


def _with_rows(blocks: Sequence[tf.Tensor], values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Blocks with further coordinates of the same workers, [n, …] each."""
    starts = itertools.accumulate((block.shape[0] for block in blocks), initial=0)
    return [
        tf.concat([block, *(value[start : start + block.shape[0]] for value in values)], axis=1)
        for block, start in zip(blocks, starts, strict=False)
    ]


def _together(inputs: Iterator[tf.Tensor], n: int, layout: Layout) -> tf.Tensor:
    return next(inputs) if layout.gathered else tf.concat([next(inputs) for _ in range(n)], axis=0)


def _union(rows: tf.Tensor, ids: tf.Tensor, n: int, dims: Sequence[int]) -> tuple[tf.Tensor, tf.Tensor]:
    """Union of all workers' ids, ascending, int64 [u], and every worker's rows for them, [n, u, …]."""
    owner, own = ids // dims[0], ids % dims[0]
    present, _ = tf.unique(tf.sort(own))
    count = tf.size(present)
    place = tf.cast(owner, tf.int32) * count + tf.searchsorted(present, own)
    values = tf.math.unsorted_segment_sum(rows, place, n * count)
    return present, tf.reshape(values, [n, count, *dims[1:]])
