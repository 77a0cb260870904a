"""Compressors: codecs of gradients as pure TensorFlow functions with explicit state, and error feedback."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import tensorflow as tf

from strategies.plan.compressors import BY_NAME, QSGD_BLOCK, n_directions, n_kept
from strategies.plan.schema import Compression

Array: TypeAlias = np.ndarray[Any, Any]
Dims: TypeAlias = tuple[int, ...]
States: TypeAlias = tuple[tf.Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """One state tensor that a codec or rule keeps between steps.

    Attributes:
        initial: initial value: `zeros`; `normal`, the same draws on every replica; or `seed`, a random state
            of the replica's own.
        is_residual: True for a part of the gradient that is still to be sent; its sum over replicas must be
            preserved.
        common: True if all replicas must hold the same value, also after a checkpoint is restored.
    """

    name: str
    dims: Dims
    dtype: str
    initial: Literal["zeros", "normal", "seed"] = "zeros"
    is_residual: bool = False
    common: bool = False


class Codec(Protocol):
    """Encodes a gradient and decodes what it encoded.

    Gradients and decoded gradients are float or double. If a gradient has values that are not finite, so has
    its decoded form, so that a finite check on aggregated gradients detects them.
    """

    def __hash__(self) -> int:
        """Equal codecs make equal graphs, which are traced once."""
        ...

    def states(self, dims: Dims, dtype: str) -> tuple[StateSpec, ...]:
        """List the state for a gradient of this shape and type."""
        ...

    def encode(self, gradient: tf.Tensor, *state: tf.Tensor) -> tuple[tf.Tensor, States]:
        """Return the payload and the next state."""
        ...

    def decode(self, payload: tf.Tensor, dims: Dims, dtype: tf.DType) -> tf.Tensor:
        """Return the gradient as its receiver decodes it."""
        ...

    def lost(self, gradient: tf.Tensor, payload: tf.Tensor) -> tf.Tensor:
        """Return the part of the gradient that its payload omits: `difference`, or the same at less cost."""
        ...

    def loss_bound(self, gradient: Array) -> float:
        """Upper bound of ‖decoded − g‖₂ for this gradient, in exact arithmetic."""
        ...


class WordsCodec(Codec, Protocol):
    """Codec whose payload is a vector of int32 of fixed length; members' payloads are gathered."""

    def decode_sum(self, payloads: tf.Tensor, dims: Dims, dtype: tf.DType) -> tf.Tensor:
        """Sum the members' payloads [member, word], always in the same order of additions."""
        ...


def difference(codec: Codec, gradient: tf.Tensor, payload: tf.Tensor) -> tf.Tensor:
    """Gradient minus its decoded payload."""
    return gradient - codec.decode(payload, tuple(gradient.shape.as_list()), gradient.dtype)


def working(gradient: tf.Tensor) -> tf.Tensor:
    """Gradient in the type in which codecs compute."""
    return tf.cast(gradient, working_type(gradient.dtype))


def working_type(dtype: tf.DType) -> tf.DType:
    """Type in which codecs compute: double for double gradients, else float."""
    return dtype if dtype == tf.float64 else tf.float32


def to_words(values: tf.Tensor) -> tf.Tensor:
    """Bits of a vector as int32; collectives gather no other small type on every device.

    Args:
        values: vector of type float or double, or of int8 with a length divisible by four.
    """
    if values.dtype == tf.int8:
        values = tf.reshape(values, [-1, 4])
    return tf.reshape(tf.bitcast(values, tf.int32), [-1])


def from_words(words: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Reinterpret words as vectors of type float, double or int8, along the last axis.

    Args:
        words: int32 tensor [member, word].
    """
    if dtype == tf.float64:
        words = tf.reshape(words, [tf.shape(words)[0], -1, 2])
    return tf.reshape(tf.bitcast(words, dtype), [tf.shape(words)[0], -1])


def words_per_value(dtype: tf.DType) -> int:
    """Number of int32 words per float or double value."""
    return 2 if dtype == tf.float64 else 1


RESIDUAL = "residual"


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """Codec with error feedback: it remembers the part of the gradient that it has not sent yet.

    The sum of sent values plus the residual equals the sum of gradients, up to one rounding per step.

    Source:
        Karimireddy et al. 2019, arXiv:1901.09847, algorithm 2.
    """

    codec: Codec

    def states(self, dims: Dims, dtype: str) -> tuple[StateSpec, ...]:
        return (
            StateSpec(name=RESIDUAL, dims=dims, dtype=dtype, is_residual=True),
            *self.codec.states(dims, dtype),
        )

    def encode(self, gradient: tf.Tensor, *state: tf.Tensor) -> tuple[tf.Tensor, States]:
        """Encode the gradient plus the residual; the part that is lost becomes the next residual."""
        residual, *inner = state
        corrected = gradient + residual
        payload, inner_state = self.codec.encode(corrected, *inner)
        return payload, (next_residual(self.codec.lost(corrected, payload)), *inner_state)

    def decode(self, payload: tf.Tensor, dims: Dims, dtype: tf.DType) -> tf.Tensor:
        return self.codec.decode(payload, dims, dtype)

    def lost(self, gradient: tf.Tensor, payload: tf.Tensor) -> tf.Tensor:
        return self.codec.lost(gradient, payload)

    def loss_bound(self, gradient: Array) -> float:
        return self.codec.loss_bound(gradient)


def next_residual(lost: tf.Tensor) -> tf.Tensor:
    """Residual: the part of a gradient that was not sent.

    A residual that is not finite becomes zero: the receiver has seen the value, and a kept residual would
    spoil every later step, even if an optimizer skips steps whose gradients are not finite.
    """
    return tf.where(tf.math.is_finite(lost), lost, tf.zeros_like(lost))


_TYPES = {"half": tf.float16, "bfloat16": tf.bfloat16}
_UNIT_ROUNDOFF = {"half": 2.0**-11, "bfloat16": 2.0**-8}
_SMALLEST = {"half": 2.0**-24, "bfloat16": 2.0**-126}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """Values rounded to a 16-bit type.

    Values beyond `limit` are sent as ±`limit`. Their error is unbounded here; error feedback sends the rest
    in later steps. Infinities and NaN are sent unchanged.

    Attributes:
        wire: type on the network, `half` or `bfloat16`.
        n_terms: number of encodings that are added up in the wire type. Each one saturates early enough that
            their sum is finite. A collective adds values as they arrive: gathering all of them and adding in
            float would take N/2 times the bytes, for N > 3 no less than without a compressor.
    """

    wire: str
    n_terms: int = 1

    def states(self, dims: Dims, dtype: str) -> tuple[StateSpec, ...]:  # noqa: ARG002 - a Codec
        return ()

    @property
    def limit(self) -> float:
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
        return self.n_terms * _SMALLEST[self.wire]

    def encode(self, gradient: tf.Tensor, *state: tf.Tensor) -> tuple[tf.Tensor, States]:
        """Return the gradient in the wire type, in its own shape."""
        cut = tf.clip_by_value(gradient, -self.limit, self.limit)
        seen = tf.where(tf.math.is_finite(gradient), cut, gradient)
        return tf.cast(seen, _TYPES[self.wire]), state

    def decode(self, payload: tf.Tensor, dims: Dims, dtype: tf.DType) -> tf.Tensor:  # noqa: ARG002 - a Codec
        return tf.cast(payload, dtype)

    def lost(self, gradient: tf.Tensor, payload: tf.Tensor) -> tf.Tensor:
        return difference(self, gradient, payload)

    def loss_bound(self, gradient: Array) -> float:
        magnitude = np.abs(gradient)
        cut = np.maximum(magnitude - self.limit, 0.0)
        rounded = _UNIT_ROUNDOFF[self.wire] * np.minimum(magnitude, self.limit) + _SMALLEST[self.wire]
        return float(np.linalg.norm(cut + rounded))

    def sum_bound(self, gradients: Sequence[Array]) -> float:
        """Upper bound of ‖Σ decoded − Σ encoded‖₂ for additions in the wire type; see `relative_error`."""
        if self.n_terms == 1:
            return 0.0
        seen = sum(np.minimum(np.abs(g), self.limit) for g in gradients)
        return float(np.linalg.norm(self.relative_error * seen + self.absolute_error))


_BLOCKS_PER_KEPT = 4
_LEAST_BLOCK = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TopK:
    """Top-k: the ⌈ratio·n⌉ values of largest magnitude, unchanged, as words: all values, then all positions.

    ‖decoded − g‖² ≤ (1 − k/n)·‖g‖². Meant to be used with error feedback, which makes it the gradient
    sparsification of the source with local accumulation; the source's momentum correction and warm-up belong
    to the optimizer and are not done here.

    Source:
        Lin et al. 2018, arXiv:1712.01887, section 3.1; bound: Stich et al. 2018, arXiv:1809.07599, lemma A.1.
    """

    ratio: float

    def states(self, dims: Dims, dtype: str) -> tuple[StateSpec, ...]:  # noqa: ARG002 - a Codec
        return ()

    def encode(self, gradient: tf.Tensor, *state: tf.Tensor) -> tuple[tf.Tensor, States]:
        """Return the words of the values, then of their positions in the flat gradient."""
        flat = tf.reshape(gradient, [-1])
        ids = _largest(flat, n_kept(math.prod(gradient.shape.as_list()), self.ratio))
        return tf.concat([to_words(tf.gather(flat, ids)), ids], axis=0), state

    def decode(self, payload: tf.Tensor, dims: Dims, dtype: tf.DType) -> tf.Tensor:
        return self.decode_sum(payload[tf.newaxis], dims, dtype)

    def decode_sum(self, payloads: tf.Tensor, dims: Dims, dtype: tf.DType) -> tf.Tensor:
        n = math.prod(dims)
        n_words = n_kept(n, self.ratio) * words_per_value(dtype)
        values = tf.reshape(from_words(payloads[:, :n_words], dtype), [-1])
        ids = tf.reshape(payloads[:, n_words:], [-1, 1])
        return tf.reshape(tf.scatter_nd(ids, values, [n]), dims)

    def lost(self, gradient: tf.Tensor, payload: tf.Tensor) -> tf.Tensor:
        n = math.prod(gradient.shape.as_list())
        ids = payload[n_kept(n, self.ratio) * words_per_value(gradient.dtype) :]
        rest = tf.tensor_scatter_nd_update(
            tf.reshape(gradient, [-1]), ids[:, tf.newaxis], tf.zeros(tf.shape(ids), gradient.dtype)
        )
        return tf.reshape(rest, gradient.shape)

    def loss_bound(self, gradient: Array) -> float:
        """Bound from the source: the largest elements hold at least their share of the norm."""
        kept_share = n_kept(gradient.size, self.ratio) / gradient.size
        return math.sqrt(1.0 - kept_share) * float(np.linalg.norm(gradient))


def _largest(flat: tf.Tensor, k: int) -> tf.Tensor:
    """Positions of the k values of largest magnitude, unordered; NaN counts as infinite.

    The k-th largest of the blocks' maxima is a threshold that at least k values reach; only those values are
    ranked.
    """
    magnitude = tf.abs(flat)
    # NaN cannot be ranked, and must be sent.
    score = tf.where(tf.math.is_nan(flat), tf.constant(float("inf"), flat.dtype), magnitude)
    n = flat.shape[0]
    block = n // (k * _BLOCKS_PER_KEPT)
    if block < _LEAST_BLOCK:
        return tf.math.top_k(score, k, sorted=False).indices
    whole = n // block * block
    # The remaining values, less than a block, may exceed the threshold but never lower it.
    maxima = tf.reduce_max(tf.reshape(score[:whole], [-1, block]), axis=1)
    threshold = tf.reduce_min(tf.math.top_k(maxima, k, sorted=False).values)
    candidates = tf.where(score >= threshold)[:, 0]
    chosen = tf.math.top_k(tf.gather(score, candidates), k, sorted=False).indices
    return tf.ensure_shape(tf.cast(tf.gather(candidates, chosen), tf.int32), [k])


FACTOR = "factor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """PowerSGD: a gradient, as a matrix of rows × last axis, projected on `rank` directions of its columns.

    Each step improves the directions of the previous one by one power iteration. decoded = P·Pᵀ·G with
    orthonormal P, so that ‖decoded − G‖ ≤ ‖G‖, and decoded = G where the rank of G is at most `rank` and the
    factor spans it. Meant to be used with error feedback.

    Source:
        Vogels et al. 2019, arXiv:1905.13727, algorithm 1.
    """

    rank: int

    def states(self, dims: Dims, dtype: str) -> tuple[StateSpec, ...]:
        """List the factor with which the next iteration begins, initially the same on every replica."""
        return (
            StateSpec(
                name=FACTOR, dims=(dims[-1], n_directions(dims, self.rank)), dtype=dtype, initial="normal"
            ),
        )

    def encode(self, gradient: tf.Tensor, *state: tf.Tensor) -> tuple[tf.Tensor, States]:
        """Return the words of P and of Q = Gᵀ·P; P and Q are this member's own."""
        (factor,) = state
        matrix = as_matrix(gradient)
        directions = orthonormal(tf.matmul(matrix, factor))
        right = right_factor(matrix, directions)
        words = [to_words(tf.reshape(part, [-1])) for part in (directions, right)]
        return tf.concat(words, axis=0), (next_factor(right, factor),)

    def decode(self, payload: tf.Tensor, dims: Dims, dtype: tf.DType) -> tf.Tensor:
        n_rows, n = math.prod(dims[:-1]), n_directions(dims, self.rank)
        flat = from_words(payload[tf.newaxis], dtype)[0]
        left, right = tf.split(flat, [n_rows * n, dims[-1] * n])
        left, right = tf.reshape(left, [n_rows, n]), tf.reshape(right, [dims[-1], n])
        return tf.reshape(tf.matmul(left, right, transpose_b=True), dims)

    def lost(self, gradient: tf.Tensor, payload: tf.Tensor) -> tf.Tensor:
        return difference(self, gradient, payload)

    def loss_bound(self, gradient: Array) -> float:
        """Norm of the whole gradient: directions that suited the last gradient may miss this one."""
        return float(np.linalg.norm(gradient))


def as_matrix(gradient: tf.Tensor) -> tf.Tensor:
    """Matrix of rows × last axis; a convolution's kernel has its filters in columns."""
    return tf.reshape(gradient, [-1, gradient.shape[-1]])


def right_factor(matrix: tf.Tensor, directions: tf.Tensor) -> tf.Tensor:
    """Matrixᵀ·directions, computed as (directionsᵀ·matrix)ᵀ, which spares Eigen a large transpose."""
    return tf.transpose(tf.matmul(directions, matrix, transpose_a=True))


def orthonormal(columns: tf.Tensor) -> tf.Tensor:
    """Orthonormal columns that span the given ones; all NaN if a value is not finite."""
    finite = tf.reduce_all(tf.math.is_finite(columns))
    # With infinite values a factorisation could return anything.
    safe = tf.where(finite, columns, tf.zeros_like(columns))
    # Columns of unit length: their products neither overflow nor vanish.
    largest = tf.reduce_max(tf.abs(safe), axis=0, keepdims=True)
    directions, _ = tf.linalg.qr(tf.math.divide_no_nan(safe, largest))
    return tf.where(finite, directions, tf.fill(tf.shape(directions), tf.cast(float("nan"), columns.dtype)))


def next_factor(factor: tf.Tensor, before: tf.Tensor) -> tf.Tensor:
    """Factor of the next iteration: columns of length one; a column that is zero or not finite is kept.

    A factor of zeros would stay zero for ever.
    """
    largest = tf.reduce_max(tf.abs(factor), axis=0, keepdims=True)
    usable = tf.reduce_all(tf.math.is_finite(factor), axis=0, keepdims=True) & (largest > 0)
    scaled = tf.math.divide_no_nan(factor, largest)
    unit = scaled / tf.sqrt(tf.maximum(tf.reduce_sum(tf.square(scaled), axis=0, keepdims=True), 1.0))
    return tf.where(usable, unit, before)


_BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """Sign of each value, and the mean magnitude, which every value gets; zero counts as positive.

    ‖decoded − g‖² = (1 − ‖g‖₁²/(n·‖g‖₂²))·‖g‖₂². Converges with error feedback only.

    Source:
        Karimireddy et al. 2019, arXiv:1901.09847, algorithm 1 and lemma 8.
    """

    def states(self, dims: Dims, dtype: str) -> tuple[StateSpec, ...]:  # noqa: ARG002 - a Codec
        return ()

    def encode(self, gradient: tf.Tensor, *state: tf.Tensor) -> tuple[tf.Tensor, States]:
        """Return the words of the mean magnitude, then the signs, 32 per word."""
        flat = tf.reshape(gradient, [-1])
        n = math.prod(gradient.shape.as_list())
        positive = tf.pad(tf.cast(flat >= 0, tf.int32), [[0, -n % _BITS]])
        shifted = tf.bitwise.left_shift(tf.reshape(positive, [-1, _BITS]), tf.range(_BITS))
        # Dividing first keeps the sum of large values finite.
        scale = tf.reduce_sum(tf.abs(flat) / n)
        return tf.concat([to_words(tf.reshape(scale, [1])), tf.reduce_sum(shifted, axis=1)], axis=0), state

    def decode(self, payload: tf.Tensor, dims: Dims, dtype: tf.DType) -> tf.Tensor:
        return self.decode_sum(payload[tf.newaxis], dims, dtype)

    def decode_sum(self, payloads: tf.Tensor, dims: Dims, dtype: tf.DType) -> tf.Tensor:
        n, n_words = math.prod(dims), words_per_value(dtype)
        scales = from_words(payloads[:, :n_words], dtype)
        bits = tf.bitwise.right_shift(payloads[:, n_words:, tf.newaxis], tf.range(_BITS))
        positive = tf.reshape(tf.bitwise.bitwise_and(bits, 1), [tf.shape(payloads)[0], -1])[:, :n]
        signed = tf.where(positive > 0, scales, -scales)
        return tf.reshape(tf.reduce_sum(signed, axis=0), dims)

    def lost(self, gradient: tf.Tensor, payload: tf.Tensor) -> tf.Tensor:
        scale = from_words(payload[tf.newaxis, : words_per_value(gradient.dtype)], gradient.dtype)[0, 0]
        return tf.where(gradient >= 0, gradient - scale, gradient + scale)

    def loss_bound(self, gradient: Array) -> float:
        squares = float(np.sum(np.square(gradient))) - float(np.sum(np.abs(gradient))) ** 2 / gradient.size
        return math.sqrt(max(squares, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized:
    """Each value rounded at random, without bias, to one of s levels of its block's largest magnitude m.

    E[decoded] = g, and for every value |decoded − g| ≤ m/s; E|decoded − g|² ≤ m²/(4s²). A byte per value and
    a magnitude per block of values travel; the source's entropy code for levels is not used.

    Source:
        Alistarh et al. 2017, arXiv:1610.02132, section 3.1, with blocks and their largest magnitude in place
        of the norm as in its section 4.
    """

    levels: int

    def states(self, dims: Dims, dtype: str) -> tuple[StateSpec, ...]:  # noqa: ARG002 - a Codec
        return (StateSpec(name="draws", dims=(2,), dtype="int64", initial="seed"),)

    def encode(self, gradient: tf.Tensor, *state: tf.Tensor) -> tuple[tf.Tensor, States]:
        """Return the words of the blocks' magnitudes, then of the signed levels."""
        (draws,) = state
        n = math.prod(gradient.shape.as_list())
        blocks = tf.reshape(tf.pad(tf.reshape(gradient, [-1]), [[0, -n % QSGD_BLOCK]]), [-1, QSGD_BLOCK])
        largest = tf.reduce_max(tf.abs(blocks), axis=1)
        # A maximum that includes NaN is not NaN on every device.
        seen = tf.where(tf.reduce_any(tf.math.is_nan(blocks), axis=1), largest * float("nan"), largest)
        share = tf.math.divide_no_nan(tf.abs(blocks), largest[:, tf.newaxis]) * self.levels
        uniform = tf.random.stateless_uniform(tf.shape(share), seed=draws, dtype=share.dtype)
        level = tf.minimum(tf.floor(share + uniform), float(self.levels)) * tf.sign(blocks)
        finite = tf.where(tf.math.is_finite(level), level, tf.zeros_like(level))
        words = [to_words(seen), to_words(tf.reshape(tf.cast(finite, tf.int8), [-1]))]
        return tf.concat(words, axis=0), (draws + tf.constant([0, 1], tf.int64),)

    def decode(self, payload: tf.Tensor, dims: Dims, dtype: tf.DType) -> tf.Tensor:
        return self.decode_sum(payload[tf.newaxis], dims, dtype)

    def decode_sum(self, payloads: tf.Tensor, dims: Dims, dtype: tf.DType) -> tf.Tensor:
        n = math.prod(dims)
        n_blocks = -(-n // QSGD_BLOCK)
        n_words = n_blocks * words_per_value(dtype)
        largest = from_words(payloads[:, :n_words], dtype)
        level = tf.cast(from_words(payloads[:, n_words:], tf.int8), dtype) / self.levels
        blocks = tf.reshape(level, [-1, n_blocks, QSGD_BLOCK]) * largest[:, :, tf.newaxis]
        return tf.reshape(tf.reshape(tf.reduce_sum(blocks, axis=0), [-1])[:n], dims)

    def lost(self, gradient: tf.Tensor, payload: tf.Tensor) -> tf.Tensor:
        return difference(self, gradient, payload)

    def loss_bound(self, gradient: Array) -> float:
        flat = np.abs(np.ravel(gradient))
        blocks = np.pad(flat, (0, -flat.size % QSGD_BLOCK)).reshape(-1, QSGD_BLOCK)
        n_of_block = np.minimum(QSGD_BLOCK, flat.size - QSGD_BLOCK * np.arange(len(blocks)))
        return float(np.sqrt(np.sum(n_of_block * np.square(blocks.max(axis=1) / self.levels))))


def codec_of(compression: Compression, *, n_terms: int) -> Codec:
    """Return the codec of a compressor.

    Args:
        n_terms: number of encodings that are added up before decoding.
    """
    compressor = BY_NAME[compression.name]
    codec = _bare(compressor.codec, compression, n_terms)
    return Feedback(codec=codec) if compressor.feedback else codec


def _bare(name: str, compression: Compression, n_terms: int) -> Codec:
    if name == "topk":
        return TopK(ratio=compression.ratio or 0.0)
    if name == "power":
        return Power(rank=compression.rank or 0)
    if name == "signs":
        return Signs()
    if name == "quantized":
        return Quantized(levels=compression.levels or 0)
    return Cast(wire=name, n_terms=n_terms)
