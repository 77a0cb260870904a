"""Rows that an aggregation rule sees: finite contributions of workers, mixed with each other if asked for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import tensorflow as tf

from strategies.numerics.rows.chunks import Chunk, folded, mapped


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Up to n rows [n, d] as the vectors that they are made of.

    Attributes:
        n: most rows that there may be.
        n_present: how many there are, int32: the first ones. The others are as the first.
        vectors: [d] each, finite ones in lexicographic order; in the place of others the first again.
        order: int32 [m]: whose each vector is.
        mixing: [n, m] by which each row is a mean of vectors; None where it is one of them.
        squares: [n, n], squared distances in the type of coordinates where they are known already, float64.
    """

    n: int
    n_present: tf.Tensor
    vectors: tuple[tf.Tensor, ...]
    order: tf.Tensor
    mixing: tf.Tensor | None = None
    squares: tf.Tensor | None = None

    @classmethod
    def of(
        cls,
        vectors: Sequence[tf.Tensor],
        order: tf.Tensor,
        n_finite: tf.Tensor,
        squares: tf.Tensor | None = None,
    ) -> "Rows":
        """All finite vectors as they are.

        Args:
            vectors: [d] of each worker. order: int32 [n], of these, finite ones first.
            squares: [n, n], squared distances between vectors.
        """
        n = len(vectors)
        places = tf.where(tf.range(n) < n_finite, order, order[:1])
        if squares is not None:
            squares = tf.gather(tf.gather(squares, places), places, axis=1)
        picked = _picked(vectors, places, n)
        return cls(n=n, n_present=n_finite, vectors=picked, order=order, squares=squares)

    @property
    def dtype(self) -> tf.DType:
        """Of coordinates."""
        return self.vectors[0].dtype

    @property
    def present(self) -> tf.Tensor:
        """Which rows there are: bool [n]."""
        return tf.range(self.n) < self.n_present

    def of_chunk(self, chunk: Chunk) -> list[tf.Tensor]:
        """The n rows of a chunk of the vectors, [c] each."""
        if self.mixing is None:
            return chunk[: self.n]
        return list(tf.unstack(self.matrix(chunk), self.n))

    def matrix(self, chunk: Chunk) -> tf.Tensor:
        """The rows of a chunk of the vectors: [n, c]."""
        if self.mixing is None:
            return tf.stack(chunk[: self.n])
        vectors = chunk[: len(self.vectors)]
        # In float64: GPUs take products of matrices of float32 in fewer digits.
        mixing, stacked = tf.cast(self.mixing, tf.float64), tf.cast(tf.stack(vectors), tf.float64)
        return within(tf.cast(tf.matmul(mixing, stacked), self.dtype), vectors)

    def map(self, fn: Callable[[Chunk], tf.Tensor], *more: tf.Tensor) -> tf.Tensor:
        """What a function makes of each coordinate, [d].

        Args:
            fn: of a chunk of the vectors and what there is more; returns [c].
            more: further vectors [d].
        """
        return mapped((*self.vectors, *more), fn)

    def fold(
        self,
        fn: Callable[[Chunk], tf.Tensor],
        first: tf.Tensor,
        join: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] = tf.add,
        *more: tf.Tensor,
    ) -> tf.Tensor:
        """What a function makes of all chunks, joined; arguments as for `folded` and `map`."""
        return folded((*self.vectors, *more), fn, first, join)

    def first(self, count: int) -> "Rows":
        """So many rows, which are there."""
        resized = replace(self, n=count, n_present=tf.constant(count), squares=None)
        if self.mixing is not None:
            return replace(resized, mixing=self.mixing[:count])
        return replace(resized, vectors=self.vectors[:count], order=self.order[:count])

    def chosen(self, places: tf.Tensor, most: int) -> "Rows":
        """Some of these rows.

        Args:
            places: int32, of rows that are there, ascending. most: how many these can be.
        """
        count = tf.size(places)
        padded = tf.pad(places, [[0, most - count]])
        padded = tf.where(tf.range(most) < count, padded, padded[:1])
        resized = replace(self, n=most, n_present=count, squares=None)
        if self.mixing is not None:
            return replace(resized, mixing=tf.gather(self.mixing, padded))
        order = tf.gather(self.order, padded)
        return replace(resized, vectors=_picked(self.vectors, padded, most), order=order)


def within(means: tf.Tensor, values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Means [c] or [n, c] of values, [c] each, kept within these: where all are equal, they are these."""
    return tf.maximum(tf.minimum(means, reduce(tf.maximum, values)), reduce(tf.minimum, values))


def _picked(vectors: Sequence[tf.Tensor], places: tf.Tensor, count: int) -> tuple[tf.Tensor, ...]:
    """The vectors at so many places, of which none is copied."""
    array = tf.TensorArray(
        vectors[0].dtype, len(vectors), element_shape=vectors[0].shape, clear_after_read=False
    )
    for place, vector in enumerate(vectors):
        array = array.write(place, vector)
    return tuple(array.read(places[k]) for k in range(count))
