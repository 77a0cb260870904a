"""Rows that an aggregation rule sees: finite contributions of workers, mixed with each other if asked for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import tensorflow as tf

from strategies.numerics.rows.chunks import Chunk, folded, mapped


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Up to n rows [n, d] as the vectors that they are made of.

    Attributes:
        n: most rows that there may be.
        n_present: how many there are, int32: the first ones. The others are as the first, or zeros.
        vectors: [d] of each worker, finite or not.
        order: int32 [m]: vectors in the rows' order, finite ones in lexicographic order first.
        n_finite: how many of these are finite, int32.
        mixing: [n, m] by which each row is a mean of vectors in their order; None where it is one of them.
        are_all: the rows are all vectors, finite or not.
    """

    n: int
    n_present: tf.Tensor
    vectors: tuple[tf.Tensor, ...]
    order: tf.Tensor
    n_finite: tf.Tensor
    mixing: tf.Tensor | None = None
    are_all: bool = True

    @classmethod
    def of(cls, vectors: Sequence[tf.Tensor], order: tf.Tensor, n_finite: tf.Tensor) -> "Rows":
        """All finite vectors as they are."""
        return cls(n=len(vectors), n_present=n_finite, vectors=tuple(vectors), order=order, n_finite=n_finite)

    @property
    def dtype(self) -> tf.DType:
        """Of coordinates."""
        return self.vectors[0].dtype

    @property
    def present(self) -> tf.Tensor:
        """Which rows there are: bool [n]."""
        return tf.range(self.n) < self.n_present

    def ordered(self, chunk: Chunk) -> tf.Tensor:
        """The rows of a chunk in their order: [n, c]."""
        vectors = tf.gather(tf.stack(chunk[: len(self.vectors)]), self.order)
        finite = tf.range(tf.size(self.order)) < self.n_finite
        vectors = tf.cond(
            tf.reduce_all(finite),
            lambda: vectors,
            lambda: tf.where(finite[:, None], vectors, tf.broadcast_to(vectors[:1], tf.shape(vectors))),
        )
        if self.mixing is None:
            return tf.ensure_shape(vectors, [self.n, None])
        return within(tf.matmul(self.mixing, vectors), vectors)

    def in_any_order(self, chunk: Chunk) -> tuple[list[tf.Tensor], bool]:
        """The rows of a chunk, [c] each, and whether they are in their order; none if that is as cheap."""
        if self.mixing is None and self.are_all:
            return chunk[: len(self.vectors)], False
        return tf.unstack(self.ordered(chunk), self.n), True

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
        mixing, order = self.mixing, self.order
        return replace(
            self,
            n=count,
            n_present=tf.constant(count),
            order=order if mixing is not None else order[:count],
            n_finite=self.n_finite if mixing is not None else tf.constant(count),
            mixing=None if mixing is None else mixing[:count],
            are_all=self.are_all and count == self.n,
        )

    def chosen(self, places: tf.Tensor, most: int) -> "Rows":
        """Some of these rows.

        Args:
            places: int32, of rows that are there, ascending. most: how many these can be.
        """
        count = tf.size(places)
        padded = tf.ensure_shape(tf.pad(places, [[0, most - count]]), [most])
        if self.mixing is not None:
            return replace(self, n=most, n_present=count, mixing=tf.gather(self.mixing, padded))
        order = tf.gather(self.order, padded)
        return replace(self, n=most, n_present=count, order=order, n_finite=count, are_all=False)


def within(means: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Means of values [n, c], of which rounding leaves none beyond the values: of equal ones it is these."""
    low, high = (tf.reduce_min(values, axis=0), tf.reduce_max(values, axis=0))
    return tf.maximum(tf.minimum(means, high), low)


def finite_rows(vectors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Whether each vector has finite coordinates alone: bool [n]."""
    zero = tf.zeros([len(vectors)], vectors[0].dtype)
    # Zero times what is finite is zero, and otherwise not a number.
    sums = folded(vectors, lambda chunk: tf.stack([tf.reduce_sum(part * 0.0) for part in chunk]), zero)
    return tf.equal(sums, 0.0)
