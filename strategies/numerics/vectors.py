"""Tensors joined into a vector, and apart again."""

import math
from collections.abc import Sequence

import tensorflow as tf


def joined(*values: tf.Tensor) -> tf.Tensor:
    """All values one after the other, of at least one tensor; tensors are of one type."""
    flat = [tf.reshape(value, [-1]) for value in values]
    return flat[0] if len(flat) == 1 else tf.concat(flat, axis=0)


def apart(vector: tf.Tensor, *, shapes: Sequence[tuple[int, ...]]) -> list[tf.Tensor]:
    """The tensors of these shapes that a vector is made of."""
    sizes = [math.prod(shape) for shape in shapes]
    parts = [vector] if len(sizes) == 1 else tf.split(vector, sizes)
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]
