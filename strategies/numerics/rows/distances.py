"""Squared distances between rows, and which of several sums of them is least, whatever rounding has done."""

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from strategies.numerics.rows.double_double import sum_of
from strategies.numerics.rows.exact_distances import exact_squares
from strategies.numerics.rows.pairs import pairwise_squares
from strategies.numerics.rows.rows import Rows

Selection = tuple[tf.Tensor, tf.Tensor]
"""Places that are selected, int32, and whether rounding may have decided."""
_ROUNDING = {tf.float32: 2.0**-18, tf.float64: 2.0**-40}
"""Relative error of a sum of squares: three roundings of each, and those of a block's sum (`pairs.BLOCK`)."""
_EXACT = 2.0**-96


@dataclass(frozen=True, slots=True, kw_only=True)
class Squares:
    """Numbers from squared distances, float64, each the sum of a high part and a low one that it rounds off.

    Attributes:
        error: relative to a number, up to which it may be wrong.
        least: below which a number is as good as zero.
        alike: bool [n, n] of numbers of rows that are the same, or as good as the same: either will do.
    """

    high: tf.Tensor
    low: tf.Tensor
    error: float
    least: tf.Tensor
    alike: tf.Tensor | None = None

    def ranks(self) -> tf.Tensor:
        """Place of each of [n] in ascending order, int32, of equal ones the first first."""
        n = self.high.shape[0]
        less = self._less()
        equal = tf.logical_not(less | tf.transpose(less))
        earlier = tf.constant([[j < i for i in range(n)] for j in range(n)])
        return tf.reduce_sum(tf.cast(less | (equal & earlier), tf.int32), axis=0)

    def places(self) -> tf.Tensor:
        """How many of [n] are smaller than each, int32: equal ones have the same place."""
        return tf.reduce_sum(tf.cast(self._less(), tf.int32), axis=0)

    def is_doubtful(self, ranks: tf.Tensor, n_best: int) -> tf.Tensor:
        """Whether rounding may have decided which are the n best: it may have made equal what is not."""
        if not self.error:
            return tf.zeros([], tf.bool)
        best = ranks < n_best
        between = best[:, None] & tf.logical_not(best)[None, :]
        # What is as good as zero may be another number, also where rows seem to be the same.
        lost = tf.reduce_any(between) & self.is_lost(
            tf.reduce_max(tf.where(best, self.high, tf.zeros_like(self.high)))
        )
        if self.alike is not None:
            between &= tf.logical_not(self.alike)
        gap = tf.abs(self._gaps())
        close = (gap <= self.error * (self.high[:, None] + self.high[None, :])) & tf.math.is_finite(gap)
        return tf.reduce_any(between & close) | lost

    def is_lost(self, number: tf.Tensor) -> tf.Tensor:
        """Whether one of these numbers is too large or too small for its type."""
        return (number < self.least) | tf.logical_not(tf.math.is_finite(number))

    def _less(self) -> tf.Tensor:
        """[n, n]: whether the one of the row is smaller than the one of the column."""
        # An infinite number is as large as another; a gap between these is none.
        return self._gaps() < -(_EXACT * tf.minimum(self.high[:, None], self.high[None, :]))

    def _gaps(self) -> tf.Tensor:
        """[n, n]: how much larger the one of the row is than the one of the column."""
        return (self.high[:, None] - self.high[None, :]) + (self.low[:, None] - self.low[None, :])


def select_by_distances(
    rows: Rows, select: Callable[[Squares], Selection], *, n_nearest: tf.Tensor | int
) -> tf.Tensor:
    """What a rule selects by distances between rows, which are computed exactly where rounding may decide.

    Differences are taken directly, coordinate by coordinate: what all rows have in common cancels exactly.

    Args:
        select: of squared distances [n, n] in the rows' order.
        n_nearest: how many nearest others of a row decide, at most.
    Returns:
        the places selected, int32.
    """

    def exactly() -> tf.Tensor:
        high, low = exact_squares(rows, n_nearest)
        exact = Squares(high=high, low=low, error=0.0, least=tf.constant(0.0, tf.float64))
        return select(exact)[0]

    def in_float64() -> tf.Tensor:
        selected, doubtful = select(_squares(rows, tf.float64))
        return tf.cond(doubtful, exactly, lambda: selected)

    if rows.dtype == tf.float64:
        return in_float64()
    selected, doubtful = select(_squares(rows, rows.dtype))
    return tf.cond(doubtful, in_float64, lambda: selected)


def nearest_sums(squares: Squares, n_nearest: tf.Tensor, pool: tf.Tensor) -> Squares:
    """Of each row the sum of its distances to the nearest others: [n].

    Args:
        n_nearest: how many others, of these.
        pool: bool [n], which rows there are; the sum of others is infinite.
    """
    n = squares.high.shape[0]
    others = pool[None, :] & tf.logical_not(tf.eye(n, dtype=tf.bool))
    high = tf.where(others, squares.high, tf.fill([n, n], tf.constant(float("inf"), tf.float64)))
    by_low = tf.argsort(squares.low, axis=1, stable=True)
    order = tf.gather(
        by_low, tf.argsort(tf.gather(high, by_low, batch_dims=1), axis=1, stable=True), batch_dims=1
    )
    counts = tf.range(n)[None, :] < n_nearest
    # Rows that are the same, and two that are each other's only neighbour: their sums are one number.
    nearest = tf.equal(tf.range(n)[None, :], order[:, :1])
    alike = tf.equal(squares.high, 0.0) | (nearest & tf.transpose(nearest) & tf.equal(n_nearest, 1))
    zeros = tf.zeros([n, n], tf.float64)
    high = tf.where(counts, tf.gather(high, order, batch_dims=1), zeros)
    low = tf.where(counts, tf.gather(squares.low, order, batch_dims=1), zeros)
    if squares.error:
        total, rest = tf.reduce_sum(high, axis=1), tf.zeros([n], tf.float64)
    else:
        total, rest = sum_of(high, low)
        # The parts of what is infinite are no numbers.
        far = tf.logical_not(tf.math.is_finite(total) & tf.math.is_finite(rest))
        total = tf.where(far, tf.fill([n], tf.constant(float("inf"), tf.float64)), total)
        rest = tf.where(far, tf.zeros_like(rest), rest)
    infinite = tf.fill([n], tf.constant(float("inf"), tf.float64))
    return Squares(
        high=tf.where(pool, total, infinite),
        low=tf.where(pool, rest, tf.zeros_like(rest)),
        error=squares.error,
        least=squares.least,
        alike=alike,
    )


def _squares(rows: Rows, dtype: tf.DType) -> Squares:
    """Squared distances of differences and squares in a type."""
    known = rows.squares if dtype == rows.dtype else None
    squares = pairwise_squares(rows, dtype) if known is None else known
    error = _ROUNDING[dtype]
    size = tf.cast(tf.size(rows.vectors[0]), tf.float64)
    least = size * (_smallest(dtype) / error)
    return Squares(high=squares, low=tf.zeros_like(squares), error=error, least=least)


def _smallest(dtype: tf.DType) -> float:
    """The smallest normal number."""
    return 2.0**-126 if dtype == tf.float32 else 2.0**-1022
