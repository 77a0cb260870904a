"""Half precision on the wire."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from strategies.numerics.compressors.codec import Array, Dims, States, StateSpec, difference

_TYPES = {"half": tf.float16, "bfloat16": tf.bfloat16}
_UNIT_ROUNDOFF = {"half": 2.0**-11, "bfloat16": 2.0**-8}
_SMALLEST = {"half": 2.0**-24, "bfloat16": 2.0**-126}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """Values rounded to a 16-bit type.

    Values beyond `limit` are sent as the limit, with their sign: their error is unbounded here, and error
    feedback sends the rest in later steps. Infinities and NaN stay what they are.

    Attributes:
        wire: `half` or `bfloat16`.
        n_terms: how many encodings are added up in the wire type, each of which saturates early enough for
            their sum to be finite. A collective adds as values arrive: gathering all and adding in float
            would take N/2 times the bytes, which for N > 3 is no less than without a compressor.
    """

    wire: str
    n_terms: int = 1

    def states(self, dims: Dims, dtype: str) -> tuple[StateSpec, ...]:  # noqa: ARG002 - a Codec
        """None."""
        return ()

    @property
    def limit(self) -> float:
        """The largest magnitude that is not cut off."""
        largest = float(_TYPES[self.wire].max)
        rounded_up = (1.0 + _UNIT_ROUNDOFF[self.wire]) ** self.n_terms
        return largest if self.n_terms == 1 else largest / (self.n_terms * rounded_up)

    @property
    def relative_error(self) -> float:
        """γ of the bound |Σ decoded − Σ g| ≤ γ·Σ|g| + `absolute_error`, where every |g| ≤ limit.

        Source:
            Higham 2002, Accuracy and stability of numerical algorithms, section 4.2: n − 1 additions of terms
            that were rounded once.
        """
        return (1.0 + _UNIT_ROUNDOFF[self.wire]) ** self.n_terms - 1.0

    @property
    def absolute_error(self) -> float:
        """What values too small for the type may lose, all terms together."""
        return self.n_terms * _SMALLEST[self.wire]

    def encode(self, gradient: tf.Tensor, *state: tf.Tensor) -> tuple[tf.Tensor, States]:
        """The gradient in the wire type and its own shape."""
        cut = tf.clip_by_value(gradient, -self.limit, self.limit)
        seen = tf.where(tf.math.is_finite(gradient), cut, gradient)
        return tf.cast(seen, _TYPES[self.wire]), state

    def decode(self, payload: tf.Tensor, dims: Dims, dtype: tf.DType) -> tf.Tensor:  # noqa: ARG002 - a Codec
        """The values in the gradient's type, exactly."""
        return tf.cast(payload, dtype)

    def lost(self, gradient: tf.Tensor, payload: tf.Tensor) -> tf.Tensor:
        """The difference."""
        return difference(self, gradient, payload)

    def loss_bound(self, gradient: Array) -> float:
        """That of rounding once, and of all that is beyond the limit."""
        magnitude = np.abs(gradient)
        cut = np.maximum(magnitude - self.limit, 0.0)
        rounded = _UNIT_ROUNDOFF[self.wire] * np.minimum(magnitude, self.limit) + _SMALLEST[self.wire]
        return float(np.linalg.norm(cut + rounded))

    def sum_bound(self, gradients: Sequence[Array]) -> float:
        """The largest ‖Σ decoded − Σ encoded‖₂, of additions in the wire type; see `relative_error`."""
        if self.n_terms == 1:
            return 0.0
        seen = sum(np.minimum(np.abs(g), self.limit) for g in gradients)
        return float(np.linalg.norm(self.relative_error * seen + self.absolute_error))
