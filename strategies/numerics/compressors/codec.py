"""Compressors as passes see them: encode, decode, and the state between steps."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import tensorflow as tf

Array: TypeAlias = np.ndarray[Any, Any]
Dims: TypeAlias = tuple[int, ...]
States: TypeAlias = tuple[tf.Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """One tensor that lives from step to step.

    Attributes:
        initial: zeros; `normal`, the same draws on every replica; `seed`, a random state of its own.
        owed: a part of the gradient that is still to be sent; sums over replicas must not get lost.
        common: all who have it must have the same, also after a checkpoint.
    """

    name: str
    dims: Dims
    dtype: str
    initial: Literal["zeros", "normal", "seed"] = "zeros"
    owed: bool = False
    common: bool = False


class Codec(Protocol):
    """Encodes a gradient and decodes what it encoded.

    Gradients are of type float or double, as is what is decoded. Whatever is not finite in a gradient leaves
    something that is not finite in what is decoded, so that a finite check on aggregated gradients sees it.
    """

    def __hash__(self) -> int:
        """Equal codecs make equal graphs, which are traced once."""
        ...

    def states(self, dims: Dims, dtype: str) -> tuple[StateSpec, ...]:
        """The state for a gradient of this shape and type."""
        ...

    def encode(self, gradient: tf.Tensor, *state: tf.Tensor) -> tuple[tf.Tensor, States]:
        """The payload, and the next state."""
        ...

    def decode(self, payload: tf.Tensor, dims: Dims, dtype: tf.DType) -> tf.Tensor:
        """The gradient as its receiver has it."""
        ...

    def lost(self, gradient: tf.Tensor, payload: tf.Tensor) -> tf.Tensor:
        """What the payload of this gradient leaves out of it: `difference`, or what is that at less cost."""
        ...

    def loss_bound(self, gradient: Array) -> float:
        """The largest ‖decoded − g‖₂ of this gradient, in exact arithmetic."""
        ...


class WordsCodec(Codec, Protocol):
    """A codec whose payload is a vector of int32, as long for every step; members' payloads are gathered."""

    def decode_sum(self, payloads: tf.Tensor, dims: Dims, dtype: tf.DType) -> tf.Tensor:
        """The sum of what members sent, [member, word], always in the same order of additions."""
        ...


def difference(codec: Codec, gradient: tf.Tensor, payload: tf.Tensor) -> tf.Tensor:
    """A gradient less what is decoded of its payload."""
    return gradient - codec.decode(payload, tuple(gradient.shape.as_list()), gradient.dtype)


def working(gradient: tf.Tensor) -> tf.Tensor:
    """A gradient in the type in which codecs compute."""
    return tf.cast(gradient, working_type(gradient.dtype))


def working_type(dtype: tf.DType) -> tf.DType:
    """Codecs compute in float, or in double where the gradient is."""
    return dtype if dtype == tf.float64 else tf.float32


def to_words(values: tf.Tensor) -> tf.Tensor:
    """The bits of a vector as int32; collectives gather no other small type on every device.

    Args:
        values: of type float or double, or int8 in a multiple of four.
    """
    if values.dtype == tf.int8:
        values = tf.reshape(values, [-1, 4])
    return tf.reshape(tf.bitcast(values, tf.int32), [-1])


def from_words(words: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Vectors of type float, double or int8 whose bits these are, along the last axis.

    Args:
        words: [member, word].
    """
    if dtype == tf.float64:
        words = tf.reshape(words, [tf.shape(words)[0], -1, 2])
    return tf.reshape(tf.bitcast(words, dtype), [tf.shape(words)[0], -1])


def words_per_value(dtype: tf.DType) -> int:
    """int32 words of one value of type float or double."""
    return 2 if dtype == tf.float64 else 1
