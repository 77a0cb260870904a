"""The two ends of a sum that a worker's own transport makes, as TensorFlow functions for passes.

Their calls of Python have no token yet.
"""

import math

import tensorflow as tf


def hand_over(*values: tf.Tensor, n_replicas: int) -> tuple[tf.Operation]:
    """Give the sum of this worker's replicas to the transport as one vector, which travels meanwhile.

    Args:
        values: all tensors of the first replica, then those of the second, …; of one type.
    """
    each = len(values) // n_replicas
    vectors = [_joined(values[k * each : (k + 1) * each]) for k in range(n_replicas)]
    summed = vectors[0] if n_replicas == 1 else tf.add_n(vectors)
    return (tf.raw_ops.PyFunc(input=[summed], token="", Tout=[]),)


def take_back(*, shapes: tuple[tuple[int, ...], ...], dtype: int) -> list[tf.Tensor]:
    """Wait for the sum over all workers, in the shapes of the values.

    Args:
        dtype: TensorFlow's number of the type.
    """
    (vector,) = tf.raw_ops.PyFunc(input=[], token="", Tout=[tf.as_dtype(dtype)])
    sizes = [math.prod(shape) for shape in shapes]
    vector = tf.ensure_shape(vector, [sum(sizes)])
    parts = [vector] if len(sizes) == 1 else tf.split(vector, sizes)
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]


def waypoint() -> tuple[tf.Operation]:
    """Nothing, to wait at."""
    return (tf.no_op(),)


def _joined(values: tuple[tf.Tensor, ...]) -> tf.Tensor:
    flat = [tf.reshape(value, [-1]) for value in values]
    return flat[0] if len(flat) == 1 else tf.concat(flat, axis=0)
