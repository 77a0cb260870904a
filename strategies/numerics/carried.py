"""Types that TensorFlow's collectives have kernels for, in place of those that they have none for."""

from collections.abc import Callable

import tensorflow as tf

_WIDER = {tf.int8: tf.int32, tf.uint8: tf.int32, tf.int16: tf.int32, tf.uint16: tf.int32}
_SAME_BITS = {
    tf.uint32: tf.int32,
    tf.uint64: tf.int64,
    tf.complex64: tf.float32,
    tf.complex128: tf.float64,
}
"""Sums of these are the others' to a bit: whole numbers wrap around alike, complex ones have two parts."""
_MOVED_AS = {tf.bfloat16: tf.float16, tf.int16: tf.float16, tf.uint16: tf.float16}
"""Types of the same size, for what no arithmetic is done on."""


def carried(value: tf.Tensor, across: Callable[[tf.Tensor], tf.Tensor], *, adds: bool) -> tf.Tensor:
    """What a collective makes of a tensor, in the tensor's own type.

    Args:
        value: [n, …].
        across: the collective, along the first axis.
        adds: whether it adds members' tensors up; otherwise it moves them as they are.
    """
    kind = value.dtype
    same = _SAME_BITS.get(kind) or (None if adds else _MOVED_AS.get(kind))
    if same is not None:
        return tf.bitcast(across(tf.bitcast(value, same)), kind)
    if kind in _WIDER:
        return tf.cast(across(tf.cast(value, _WIDER[kind])), kind)
    return across(value)
