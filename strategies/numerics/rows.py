"""Vectors of several workers as rows: finite ones, in lexicographic order, processed in chunks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeAlias

import tensorflow as tf

Chunk: TypeAlias = list[tf.Tensor]
"""One range of coordinates of several blocks [k, d] or vectors [d]: [k, c] or [c] each."""
_CHUNK_BYTES = 4 << 20
_PARALLEL_CHUNKS = 2
"""Chunks processed in parallel; more would not fit into a processor's cache."""
_MOST = 1e300
"""Upper limit of distances, so that a sum of several stays finite."""
MOST_APART = 16
"""Number of rows up to which operations on each row, or on each pair, are faster than a few on all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows that a rule combines: finite vectors, or means of finite vectors.

    Attributes:
        blocks: vectors of all workers, float or double: [k, d] for k workers each.
        order: workers with finite vectors, in lexicographic order of the vectors, int32 [p].
        mixing: weight of each finite vector in each row, float64 [n, p]; None if rows are the vectors
            themselves.
    """

    blocks: tuple[tf.Tensor, ...]
    order: tf.Tensor
    mixing: tf.Tensor | None = None

    @classmethod
    def of(cls, blocks: Sequence[tf.Tensor], finite: tf.Tensor) -> "Rows":
        """Order the finite vectors.

        Args:
            finite: mask of the finite vectors, bool [number of workers].
        """
        n_finite = tf.math.count_nonzero(finite, dtype=tf.int32)
        return cls(blocks=tuple(blocks), order=_lexicographic_order(blocks, finite)[:n_finite])

    @property
    def dtype(self) -> tf.DType:
        return self.blocks[0].dtype

    @property
    def n_workers(self) -> int:
        return n_rows(self.blocks)

    @property
    def count(self) -> tf.Tensor:
        return tf.size(self.order) if self.mixing is None else tf.shape(self.mixing)[0]

    def chosen(self, places: tf.Tensor) -> "Rows":
        """Select the rows at these positions, int32 [k]."""
        if self.mixing is None:
            return replace(self, order=tf.gather(self.order, places))
        return replace(self, mixing=tf.gather(self.mixing, places))

    def matrix(self, chunk: Chunk) -> tf.Tensor:
        """Rows of one chunk of the blocks: [n, c]."""
        finite = tf.gather(together(chunk[: len(self.blocks)]), self.order)
        if self.mixing is None:
            return finite
        # In float64: GPUs multiply float32 matrices with lower precision.
        return tf.cast(tf.matmul(self.mixing, tf.cast(finite, tf.float64)), self.dtype)

    def map(self, fn: Callable[..., tf.Tensor], *more: tf.Tensor) -> tf.Tensor:
        """Apply a function to each coordinate.

        Args:
            fn: function of the rows [n, c] of a chunk and of the same chunk of each of `more`, [c]; returns
                [c].
            more: additional vectors [d].
        Returns:
            Vector [d].
        """
        values = (*self.blocks, *more)
        length, size = _chunk_length(values), _length(self.blocks[0])

        def of_chunk(chunk: Chunk) -> tf.Tensor:
            return fn(self.matrix(chunk), *chunk[len(self.blocks) :])

        if _fits(self.blocks[0], length):
            return tf.ensure_shape(of_chunk(list(values)), self.blocks[0].shape[1:])
        n_chunks = (size + length - 1) // length
        parts = tf.TensorArray(self.dtype, n_chunks, infer_shape=False, element_shape=[None])
        _, parts = tf.while_loop(
            lambda i, _: i < n_chunks,
            lambda i, parts: (i + 1, parts.write(i, of_chunk(_chunk(values, i, length, size)))),
            [0, parts],
            parallel_iterations=_PARALLEL_CHUNKS,
        )
        return tf.ensure_shape(parts.concat(), self.blocks[0].shape[1:])

    def sum(self, fn: Callable[..., tf.Tensor], first: tf.Tensor, *more: tf.Tensor) -> tf.Tensor:
        """Sum a function over all chunks; arguments as for `map`.

        Args:
            fn: function that returns a tensor of the type and shape of `first`.
        """
        n = len(self.blocks)
        return _sum((*self.blocks, *more), lambda chunk: fn(self.matrix(chunk), *chunk[n:]), first)

    def squared_distances(self) -> tf.Tensor:
        """Squared distances between all rows from direct differences, float64 [n, n]."""
        of_chunk = self._of_pairs if self.n_workers <= MOST_APART else _distances_of_rows
        return tf.minimum(self.sum(of_chunk, tf.zeros([self.count] * 2, tf.float64)), _MOST)

    def _of_pairs(self, matrix: tf.Tensor) -> tf.Tensor:
        most = self.n_workers
        pairs = list(combinations(range(most), 2))
        if not pairs:
            return tf.zeros([self.count] * 2, tf.float64)
        rows = [tf.cast(row, tf.float64) for row in tf.unstack(padded(matrix, most, 0.0), num=most)]
        squares = [tf.reduce_sum(tf.math.squared_difference(rows[i], rows[j])) for i, j in pairs]
        upper = tf.scatter_nd(tf.constant(pairs), tf.stack(squares), [most, most])
        return (upper + tf.transpose(upper))[: self.count, : self.count]

    def distances_from(self, centre: tf.Tensor) -> tf.Tensor:
        """Distances of all rows from a vector [d], float64 [n]."""

        def of_chunk(matrix: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
            matrix, part = tf.cast(matrix, tf.float64), tf.cast(part, tf.float64)
            return tf.reduce_sum(tf.math.squared_difference(matrix, part), axis=1)

        return tf.sqrt(self.sum(of_chunk, tf.zeros([self.count], tf.float64), centre))


def _distances_of_rows(matrix: tf.Tensor) -> tf.Tensor:
    rows = tf.cast(matrix, tf.float64)
    return tf.map_fn(
        lambda row: tf.reduce_sum(tf.math.squared_difference(rows, row), axis=1),
        rows,
        parallel_iterations=1,
    )


def n_rows(blocks: Sequence[tf.Tensor]) -> int:
    """Number of rows of all blocks together."""
    return sum(block.shape[0] for block in blocks)


def together(blocks: Sequence[tf.Tensor]) -> tf.Tensor:
    """Rows of all blocks: [n, d]."""
    return blocks[0] if len(blocks) == 1 else tf.concat(list(blocks), axis=0)


def padded(matrix: tf.Tensor, most: int, filling: float) -> tf.Tensor:
    """Matrix [m, c] with further rows up to a number that the graph knows: [most, c]."""
    missing = most - tf.shape(matrix)[0]
    rows = tf.pad(matrix, [[0, missing], [0, 0]], constant_values=filling)
    return tf.ensure_shape(rows, [most, *matrix.shape[1:]])


def ascending(keys: tf.Tensor, *, carried: tf.Tensor | None = None) -> tf.Tensor:
    """Sort along the first axis, stably.

    For few rows out-of-order neighbours are swapped, in as many rounds as there are rows: many times faster
    than `tf.sort` of short columns.

    Args:
        keys: tensor [n, …], n known to the graph. carried: values that are moved together with their keys.
    Returns:
        Sorted keys, or the carried values.
    """
    if keys.shape[0] <= MOST_APART:
        values = [] if carried is None else tf.unstack(carried)
        return tf.stack(_by_swaps(tf.unstack(keys), values))
    if carried is None:
        return tf.sort(keys, axis=0)
    order = tf.argsort(tf.transpose(keys), stable=True)
    return tf.transpose(tf.gather(tf.transpose(carried), order, axis=1, batch_dims=1))


def _by_swaps(keys: list[tf.Tensor], values: list[tf.Tensor]) -> list[tf.Tensor]:
    for turn in range(len(keys)):
        for i in range(turn % 2, len(keys) - 1, 2):
            first, second = keys[i], keys[i + 1]
            if values:
                is_late = first > second
                low, high = values[i], values[i + 1]
                values[i], values[i + 1] = tf.where(is_late, high, low), tf.where(is_late, low, high)
            keys[i], keys[i + 1] = tf.minimum(first, second), tf.maximum(first, second)
    return values or keys


def finite_vectors(blocks: Sequence[tf.Tensor]) -> tf.Tensor:
    """Mask of the vectors that are finite in every coordinate: bool [number of workers].

    Args:
        blocks: vectors, [k, d] each.
    """

    def not_finite(chunk: Chunk) -> tf.Tensor:
        # Zero times a finite number is zero, times any other not a number: one pass without a mask.
        sums = [tf.cast(tf.reduce_sum(part * 0, axis=1), tf.float64) for part in chunk]
        return together(sums)

    return tf.equal(_sum(blocks, not_finite, tf.zeros([n_rows(blocks)], tf.float64)), 0)


def _sum(values: Sequence[tf.Tensor], fn: Callable[[Chunk], tf.Tensor], first: tf.Tensor) -> tf.Tensor:
    length, size = _chunk_length(values), _length(values[0])
    if _fits(values[0], length):
        return first + fn(list(values))
    _, total = tf.while_loop(
        lambda i, _: i * length < size,
        lambda i, total: (i + 1, total + fn(_chunk(values, i, length, size))),
        [0, first],
        parallel_iterations=_PARALLEL_CHUNKS,
    )
    return total


def _chunk_length(values: Sequence[tf.Tensor]) -> int:
    n = sum(1 if value.shape.rank == 1 else value.shape[0] for value in values)
    length = _CHUNK_BYTES // (n * values[0].dtype.size)
    return 1 << max(10, int(math.log2(length)))


def _length(block: tf.Tensor) -> tf.Tensor:
    """Number of coordinates, int32."""
    return tf.shape(block)[1] if block.shape[1] is None else tf.constant(block.shape[1])


def _fits(block: tf.Tensor, length: int) -> bool:
    return block.shape[1] is not None and block.shape[1] <= length


def _chunk(values: Sequence[tf.Tensor], i: tf.Tensor, length: int, size: tf.Tensor) -> Chunk:
    start = i * length
    return _range(values, start, tf.minimum(length, size - start))


def _range(values: Sequence[tf.Tensor], start: tf.Tensor, length: tf.Tensor) -> Chunk:
    return [
        tf.slice(value, [start], [length])
        if value.shape.rank == 1
        else tf.slice(value, [0, start], [value.shape[0], length])
        for value in values
    ]


_FIRST_LENGTH = 64
_LAST_LENGTH = 1 << 15


def _lexicographic_order(blocks: Sequence[tf.Tensor], finite: tf.Tensor) -> tf.Tensor:
    """Indices of vectors in lexicographic order, those that are not finite last: int32 [n].

    Ranks start equal and are refined at the first coordinate in which two vectors of equal rank differ, then
    at the next, until all differ. Vectors mostly differ early, so a short first part is compared first.
    """
    n, size = n_rows(blocks), _length(blocks[0])
    n_finite = tf.math.count_nonzero(finite, dtype=tf.int32)

    def has_ties(rank: tf.Tensor, start: tf.Tensor, _length: tf.Tensor) -> tf.Tensor:
        same_rank = tf.equal(rank[:, None], rank[None, :]) & finite[:, None]
        return (start < size) & (tf.math.count_nonzero(same_rank, dtype=tf.int32) > n_finite)

    def refined(rank: tf.Tensor, start: tf.Tensor, length: tf.Tensor) -> tuple[tf.Tensor, ...]:
        length = tf.minimum(length, size - start)
        part = together(_range(blocks, start, length))
        first_of_rank = tf.argmax(tf.equal(rank[:, None], rank[None, :]), axis=1, output_type=tf.int32)
        differs = tf.reduce_any(tf.not_equal(part, tf.gather(part, first_of_rank)) & finite[:, None], axis=0)
        place, any_differs = tf.argmax(differs, output_type=tf.int32), tf.reduce_any(differs)
        values = tf.where(any_differs & finite, tf.gather(part, place, axis=1), tf.zeros([], part.dtype))
        next_start = start + tf.where(any_differs, place + 1, length)
        return _refined(rank, values), next_start, tf.minimum(length * 8, _LAST_LENGTH)

    rank, _, _ = tf.while_loop(
        has_ties,
        refined,
        [tf.where(finite, 0, n), tf.constant(0), tf.constant(_FIRST_LENGTH)],
        parallel_iterations=1,
    )
    return tf.argsort(rank, stable=True)


def _refined(rank: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Refine ranks by value: number of vectors that come before each vector, int32 [n]."""
    comes_before = rank[:, None] > rank[None, :]
    comes_before |= tf.equal(rank[:, None], rank[None, :]) & (values[:, None] > values[None, :])
    return tf.math.count_nonzero(comes_before, axis=1, dtype=tf.int32)
