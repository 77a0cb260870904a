"""Powers of two, by which numbers are multiplied without rounding."""

import tensorflow as tf

_EXPONENTS = {tf.float32: 100.0, tf.float64: 1000.0}
"""Up to which a type has a power and one over it, with room for some sums."""


def power_of_two(numbers: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Powers of two about as large as numbers, as far as a type has them and their inverse.

    Args:
        numbers: float64, positive.
        dtype: of what is multiplied.
    Returns:
        float64, within a factor of two of each number.
    """
    two, most = tf.constant(2.0, tf.float64), _EXPONENTS[dtype]
    exponents = tf.math.floor(tf.math.log(numbers) / tf.math.log(two))
    return tf.pow(two, tf.clip_by_value(exponents, -most, most))
