"""The largest values of a gradient and where they belong."""

import math
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from strategies.numerics.compressors.codec import (
    Array,
    Dims,
    States,
    StateSpec,
    from_words,
    to_words,
    words_per_value,
)
from strategies.plan.compressors import n_kept

_BLOCKS_PER_KEPT = 4
_LEAST_BLOCK = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TopK:
    """The ⌈ratio·n⌉ values of largest magnitude, unchanged, as words of values and then of their positions.

    ‖decoded − g‖² ≤ (1 − k/n)·‖g‖². Meant to be used with error feedback, which makes it the gradient
    sparsification of the source with local accumulation; the source's momentum correction and warm-up belong
    to the optimizer and are not done here.

    Source:
        Lin et al. 2018, arXiv:1712.01887, section 3.1; bound: Stich et al. 2018, arXiv:1809.07599, lemma A.1.
    """

    ratio: float

    def states(self, dims: Dims, dtype: str) -> tuple[StateSpec, ...]:  # noqa: ARG002 - a Codec
        """None."""
        return ()

    def encode(self, gradient: tf.Tensor, *state: tf.Tensor) -> tuple[tf.Tensor, States]:
        """Words of the values, then of their positions in the flat gradient."""
        flat = tf.reshape(gradient, [-1])
        ids = _largest(flat, n_kept(math.prod(gradient.shape.as_list()), self.ratio))
        return tf.concat([to_words(tf.gather(flat, ids)), ids], axis=0), state

    def decode(self, payload: tf.Tensor, dims: Dims, dtype: tf.DType) -> tf.Tensor:
        """The values at their positions, zeros elsewhere."""
        return self.decode_sum(payload[tf.newaxis], dims, dtype)

    def decode_sum(self, payloads: tf.Tensor, dims: Dims, dtype: tf.DType) -> tf.Tensor:
        """All members' values added up at their positions."""
        n = math.prod(dims)
        n_words = n_kept(n, self.ratio) * words_per_value(dtype)
        values = tf.reshape(from_words(payloads[:, :n_words], dtype), [-1])
        ids = tf.reshape(payloads[:, n_words:], [-1, 1])
        return tf.reshape(tf.scatter_nd(ids, values, [n]), dims)

    def lost(self, gradient: tf.Tensor, payload: tf.Tensor) -> tf.Tensor:
        """All but the values that are sent: zeros in their place."""
        n = math.prod(gradient.shape.as_list())
        ids = payload[n_kept(n, self.ratio) * words_per_value(gradient.dtype) :]
        rest = tf.tensor_scatter_nd_update(
            tf.reshape(gradient, [-1]), ids[:, tf.newaxis], tf.zeros(tf.shape(ids), gradient.dtype)
        )
        return tf.reshape(rest, gradient.shape)

    def loss_bound(self, gradient: Array) -> float:
        """That of the source: what is kept is at least its share of the whole."""
        kept = n_kept(gradient.size, self.ratio) / gradient.size
        return math.sqrt(1.0 - kept) * float(np.linalg.norm(gradient))


def _largest(flat: tf.Tensor, k: int) -> tf.Tensor:
    """Positions of the k values of largest magnitude, in no order; what is not a number counts as infinite.

    The k-th largest of the blocks' largest magnitudes is a threshold that k values reach at least: only those
    that do are ranked.
    """
    magnitude = tf.abs(flat)
    # What is not a number has no rank among numbers, and must be sent.
    score = tf.where(tf.math.is_nan(flat), tf.constant(float("inf"), flat.dtype), magnitude)
    n = flat.shape[0]
    block = n // (k * _BLOCKS_PER_KEPT)
    if block < _LEAST_BLOCK:
        return tf.math.top_k(score, k, sorted=False).indices
    whole = n // block * block
    # The rest of the values, fewer than a block, may be above the threshold and lower it in no case.
    maxima = tf.reduce_max(tf.reshape(score[:whole], [-1, block]), axis=1)
    threshold = tf.reduce_min(tf.math.top_k(maxima, k, sorted=False).values)
    candidates = tf.where(score >= threshold)[:, 0]
    chosen = tf.math.top_k(tf.gather(score, candidates), k, sorted=False).indices
    return tf.ensure_shape(tf.cast(tf.gather(candidates, chosen), tf.int32), [k])
