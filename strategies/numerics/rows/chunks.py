"""Long vectors in chunks that a processor's cache holds: mapped to a vector, or folded to something small."""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import tensorflow as tf

Chunk: TypeAlias = list[tf.Tensor]
"""The same range of coordinates of each vector."""
_CHUNK_BYTES = 4 << 20
_AT_ONCE = 2
"""Chunks that two cores work on; more would not stay in cache."""


def chunk_length(vectors: Sequence[tf.Tensor]) -> int:
    """Coordinates of a chunk: a power of two, of which that of all vectors takes some megabytes."""
    length = _CHUNK_BYTES // (len(vectors) * vectors[0].dtype.size)
    return 1 << max(10, int(math.log2(length)))


def mapped(vectors: Sequence[tf.Tensor], fn: Callable[[Chunk], tf.Tensor]) -> tf.Tensor:
    """What a function makes of each coordinate of all vectors.

    Args:
        vectors: [d] each, of one type.
        fn: of chunks [c] of all vectors; returns [c].
    Returns:
        [d].
    """
    length = chunk_length(vectors)
    if _fits(vectors[0], length):
        return tf.ensure_shape(fn(list(vectors)), vectors[0].shape)
    size = tf.size(vectors[0])
    n_chunks = (size + length - 1) // length
    parts = tf.TensorArray(vectors[0].dtype, n_chunks, infer_shape=False, element_shape=[None])
    _, parts = tf.while_loop(
        lambda i, _: i < n_chunks,
        lambda i, parts: (i + 1, parts.write(i, fn(_chunk(vectors, i, length, size)))),
        [0, parts],
        parallel_iterations=_AT_ONCE,
    )
    return tf.ensure_shape(parts.concat(), vectors[0].shape)


def folded(
    vectors: Sequence[tf.Tensor],
    fn: Callable[[Chunk], tf.Tensor],
    first: tf.Tensor,
    join: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] = tf.add,
) -> tf.Tensor:
    """What a function makes of all chunks of coordinates, joined in their order.

    Args:
        vectors: [d] each, of one type.
        fn: of chunks [c] of all vectors; returns a tensor like `first`.
        first: what chunks are joined to.
        join: of what came so far and what comes of the next chunk.
    """
    length = chunk_length(vectors)
    if _fits(vectors[0], length):
        return join(first, fn(list(vectors)))
    size = tf.size(vectors[0])
    _, total = tf.while_loop(
        lambda i, _: i * length < size,
        lambda i, total: (i + 1, join(total, fn(_chunk(vectors, i, length, size)))),
        [0, first],
        parallel_iterations=_AT_ONCE,
    )
    return total


def _fits(vector: tf.Tensor, length: int) -> bool:
    return vector.shape[0] is not None and vector.shape[0] <= length


def _chunk(vectors: Sequence[tf.Tensor], i: tf.Tensor, length: int, size: tf.Tensor) -> Chunk:
    start = i * length
    return [tf.slice(vector, [start], [tf.minimum(length, size - start)]) for vector in vectors]
