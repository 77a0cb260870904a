"""Error feedback: the next gradient gets what the encoding lost."""

from dataclasses import dataclass

import tensorflow as tf

from strategies.numerics.compressors.codec import Array, Codec, Dims, States, StateSpec

RESIDUAL = "residual"


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """A codec with a memory of what it has not sent yet.

    What was sent plus what is kept equals the sum of gradients, up to the rounding of one addition per step.

    Source:
        Karimireddy et al. 2019, arXiv:1901.09847, algorithm 2.
    """

    codec: Codec

    def states(self, dims: Dims, dtype: str) -> tuple[StateSpec, ...]:
        """The codec's own state after the residual."""
        return (StateSpec(name=RESIDUAL, dims=dims, dtype=dtype, owed=True), *self.codec.states(dims, dtype))

    def encode(self, gradient: tf.Tensor, *state: tf.Tensor) -> tuple[tf.Tensor, States]:
        """Encode the gradient and what is owed; what is lost is owed to the next one."""
        residual, *inner = state
        corrected = gradient + residual
        payload, kept = self.codec.encode(corrected, *inner)
        return payload, (owed(self.codec.lost(corrected, payload)), *kept)

    def decode(self, payload: tf.Tensor, dims: Dims, dtype: tf.DType) -> tf.Tensor:
        """As the codec does."""
        return self.codec.decode(payload, dims, dtype)

    def lost(self, gradient: tf.Tensor, payload: tf.Tensor) -> tf.Tensor:
        """As the codec does; it is owed then."""
        return self.codec.lost(gradient, payload)

    def loss_bound(self, gradient: Array) -> float:
        """The codec's, of the gradient with what was owed to it."""
        return self.codec.loss_bound(gradient)


def owed(lost: tf.Tensor) -> tf.Tensor:
    """What was meant to be sent and was not.

    Where that is not finite nothing is owed: the receiver has seen it, and a memory of it would spoil every
    later step, which an optimizer that skips steps of gradients that are not finite could not repair.
    """
    return tf.where(tf.math.is_finite(lost), lost, tf.zeros_like(lost))
