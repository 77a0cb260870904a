"""Types that TensorFlow's collectives have kernels for, in place of those that they have none for."""

from collections.abc import Callable

import tensorflow as tf

_AS_INTEGERS = {
    tf.int8: tf.int32,
    tf.uint8: tf.int32,
    tf.int16: tf.int32,
    tf.uint16: tf.int32,
    tf.uint32: tf.int64,
}
_AS_PAIRS = {tf.complex64: tf.float32, tf.complex128: tf.float64}


def carried(value: tf.Tensor, across: Callable[[tf.Tensor], tf.Tensor], *, adds: bool) -> tf.Tensor:
    """What a collective makes of a tensor, in the tensor's own type.

    Args:
        value: [n, …].
        across: the collective, along the first axis.
        adds: whether it adds members' tensors up; otherwise it has them one after the other.
    """
    kind = value.dtype
    if kind in _AS_INTEGERS:
        return tf.cast(across(tf.cast(value, _AS_INTEGERS[kind])), kind)
    if kind in _AS_PAIRS:
        return tf.bitcast(across(tf.bitcast(value, _AS_PAIRS[kind])), kind)
    if kind == tf.uint64:
        return tf.bitcast(across(tf.bitcast(value, tf.int64)), kind)
    if kind == tf.bfloat16 and not adds:
        return tf.cast(across(tf.cast(value, tf.float32)), kind)
    return across(value)
