"""Arithmetic in twice the precision of float64: a number is the sum of a high part and what it rounds off.

Each operation is exact but for about 2⁻¹⁰⁴ of its result. Factors must not overflow when multiplied by 2²⁷.
"""

import tensorflow as tf

Pair = tuple[tf.Tensor, tf.Tensor]
_SPLIT = 134217729.0  # 2²⁷ + 1: halves of a float64's digits


def two_sum(one: tf.Tensor, other: tf.Tensor) -> Pair:
    """A sum of two numbers and its error.

    Source:
        Knuth, The art of computer programming 2, section 4.2.2, theorem B.
    """
    total = one + other
    part = total - one
    return total, (one - (total - part)) + (other - part)


def square(number: Pair) -> Pair:
    """The square of a number.

    Source:
        Dekker 1971, A floating-point technique for extending the available precision.
    """
    high, low = number
    scaled = high * _SPLIT
    upper = scaled - (scaled - high)
    lower = high - upper
    product = high * high
    error = ((upper * upper - product) + upper * lower * 2.0) + lower * lower
    return two_sum(product, error + high * low * 2.0)


def sum_of(high: tf.Tensor, low: tf.Tensor) -> Pair:
    """The sum along the last axis, of halves and halves of these.

    Args:
        high, low: [n, m] each.
    Returns:
        [n] each.
    """

    def halved(size: tf.Tensor, high: tf.Tensor, low: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        half = (size + 1) // 2
        odd = [[0, 0], [0, 2 * half - size]]
        high, low = tf.pad(high, odd), tf.pad(low, odd)
        total, error = two_sum(high[:, :half], high[:, half:])
        total, error = two_sum(total, error + (low[:, :half] + low[:, half:]))
        return half, total, error

    rows = high.shape[0]
    _, high, low = tf.while_loop(
        lambda size, _high, _low: size > 1,
        halved,
        [tf.shape(high)[1], high, low],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([rows, None]), tf.TensorShape([rows, None])],
    )
    return high[:, 0], low[:, 0]
