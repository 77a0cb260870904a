"""Sums of encoded gradients, whole or stage by stage, as TensorFlow functions that passes splice in."""

from collections.abc import Sequence
from typing import cast

import tensorflow as tf

from strategies.ir.graph import DType
from strategies.numerics.collectives import bucket_all_reduce, gathered
from strategies.numerics.compressors import (
    Cast,
    Codec,
    Dims,
    Feedback,
    Power,
    States,
    WordsCodec,
    as_matrix,
    next_factor,
    orthonormal,
    right_factor,
    working,
    working_type,
)


def projected(*tensors: tf.Tensor) -> list[tf.Tensor]:
    """Each gradient plus its residual, as a matrix, and the product of each matrix with its factor.

    Args:
        tensors: n gradients, then residual and factor of each of them in turn.
    Returns:
        n matrices [rows, columns] and n products [rows, directions]; the caller sums the products over
        members.
    """
    n = len(tensors) // 3
    gradients, residuals, factors = tensors[:n], tensors[n::2], tensors[n + 1 :: 2]
    matrices = [as_matrix(working(g) + residual) for g, residual in zip(gradients, residuals, strict=True)]
    return matrices + [tf.matmul(m, factor) for m, factor in zip(matrices, factors, strict=True)]


def directions(*products: tf.Tensor) -> list[tf.Tensor]:
    """Orthonormal left factors of the summed products."""
    return [orthonormal(product) for product in products]


def own_right_factors(*tensors: tf.Tensor) -> list[tf.Tensor]:
    """This member's right factors [columns, directions], which the caller sums over members.

    Args:
        tensors: n matrices, then n left factors.
    """
    matrices, lefts = _in(2, tensors)
    return [right_factor(m, left) for m, left in zip(matrices, lefts, strict=True)]


def projection_states(*tensors: tf.Tensor, shapes: tuple[Dims, ...]) -> list[tf.Tensor]:
    """Residual and next factor of each gradient in turn.

    Args:
        tensors: n matrices, n left factors, this member's n right factors, n right factors of all members,
            and n previous factors.
    """
    states = []
    for matrix, left, own, right, factor, dims in zip(*_in(5, tensors), shapes, strict=True):
        lost = matrix - tf.matmul(left, own, transpose_b=True)
        # Like `next_residual`, for all values at once: one infinite value makes all of the first factor so,
        # or a column of the second. Checking each value would take as long as the products, and SelectV2 too,
        # which copies its inputs.
        finite = tf.math.is_finite(tf.reduce_sum(left)) & tf.math.is_finite(tf.reduce_sum(own))
        residual = tf.raw_ops.Select(condition=finite, x=lost, y=tf.zeros_like(lost))
        states += [tf.reshape(residual, dims), next_factor(right, factor)]
    return states


def sums_of_factors(*tensors: tf.Tensor, shapes: tuple[Dims, ...], dtype: int) -> list[tf.Tensor]:
    """Sums of gradients over all members, as far as the directions span them, in type `dtype`.

    Args:
        tensors: n left factors, then n right factors of all members.
    """
    products = (
        tf.matmul(left, right, transpose_b=True) for left, right in zip(*_in(2, tensors), strict=True)
    )
    return [
        tf.cast(tf.reshape(product, dims), tf.as_dtype(dtype))
        for product, dims in zip(products, shapes, strict=True)
    ]


def _in(n: int, tensors: tuple[tf.Tensor, ...]) -> list[tuple[tf.Tensor, ...]]:
    n_each = len(tensors) // n
    return [tensors[i * n_each : (i + 1) * n_each] for i in range(n)]


Group = tuple[int, int]
"""Number of members, and key of their group."""


def bare(codec: Codec) -> Codec:
    """Codec without its error feedback."""
    return codec.codec if isinstance(codec, Feedback) else codec


def n_keys(codec: Codec, n_pieces: int) -> int:
    """Number of instance keys that `compressed_sum` needs: one per piece, or one per stage."""
    if isinstance(bare(codec), Cast):
        return n_pieces
    return 2 if isinstance(bare(codec), Power) else 1


def payload_dtype(codec: Codec) -> DType:
    """Type of the payload that `encode_one` returns."""
    inner = bare(codec)
    return DType(inner.wire) if isinstance(inner, Cast) else DType("int32")


def compressed_sum(
    *tensors: tf.Tensor, shapes: tuple[Dims, ...], codec: Codec, group: Group, keys: tuple[int, ...]
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Sum gradients over all members, with encoded gradients on the network.

    Args:
        tensors: gradients of one type, of the static shapes `shapes`; then the state of each of them in turn.
        keys: instance keys, `n_keys` of them.
    Returns:
        Sums in the gradients' type, and the next states in the order of the states.
    """
    gradients = [working(g) for g in tensors[: len(shapes)]]
    states = _grouped(tensors[len(shapes) :], len(shapes))
    if isinstance(bare(codec), Cast):
        sums, next_states = _cast_sums(gradients, states, codec, group, keys)
    elif isinstance(bare(codec), Power):
        sums, next_states = _power_sums(gradients, states, group, keys)
    else:
        sums, next_states = _gathered_sums(gradients, states, codec, group, keys[0])
    return [tf.cast(total, tensors[0].dtype) for total in sums], [
        tensor for state in next_states for tensor in state
    ]


def rounded_one(gradient: tf.Tensor, *state: tf.Tensor, codec: Codec) -> list[tf.Tensor]:
    """Encode and decode a gradient: the result in its own type, and the next states."""
    payload, after = codec.encode(working(gradient), *state)
    sent = codec.decode(payload, _dims(gradient), working_type(gradient.dtype))
    return [tf.cast(sent, gradient.dtype), *after]


def encode_one(gradient: tf.Tensor, *state: tf.Tensor, codec: Codec) -> tuple[tf.Tensor, States]:
    """Payload of one gradient, and the next state."""
    return codec.encode(working(gradient), *state)


def decode_one(payload: tf.Tensor, *, dims: Dims, dtype: int, codec: Codec) -> tf.Tensor:
    """Gradient decoded from a payload, in type `dtype`."""
    wanted = tf.as_dtype(dtype)
    return tf.cast(codec.decode(payload, dims, working_type(wanted)), wanted)


def decoded_sums(
    payloads: tf.Tensor, *, lengths: tuple[int, ...], shapes: tuple[Dims, ...], dtype: int, codec: Codec
) -> list[tf.Tensor]:
    """Sums of gradients over all members, in type `dtype`.

    Args:
        payloads: payloads of all gradients from the first member, then from the second, and so on, flat.
        lengths: number of words of each gradient's payload.
        codec: codec with word payloads.
    """
    wanted = tf.as_dtype(dtype)
    parts = tf.split(tf.reshape(payloads, [-1, sum(lengths)]), lengths, axis=1)
    words = cast("WordsCodec", bare(codec))
    return [
        tf.cast(words.decode_sum(part, dims, working_type(wanted)), wanted)
        for part, dims in zip(parts, shapes, strict=True)
    ]


def decode_sum_of(codec: Codec, payloads: Sequence[tf.Tensor], dims: Dims, dtype: tf.DType) -> tf.Tensor:
    """Sum of members' gradients; a single payload may be of any codec, several must be words."""
    if len(payloads) == 1:
        return codec.decode(payloads[0], dims, dtype)
    return cast("WordsCodec", bare(codec)).decode_sum(tf.stack(payloads), dims, dtype)


def _grouped(states: Sequence[tf.Tensor], n: int) -> list[States]:
    n_each = len(states) // n
    return [tuple(states[i * n_each : (i + 1) * n_each]) for i in range(n)]


def _cast_sums(
    gradients: list[tf.Tensor], states: list[States], codec: Codec, group: Group, keys: tuple[int, ...]
) -> tuple[list[tf.Tensor], list[States]]:
    encoded = [codec.encode(g, *state) for g, state in zip(gradients, states, strict=True)]
    payloads = [payload for payload, _ in encoded]
    shapes = tuple(_dims(g) for g in gradients)
    sums = bucket_all_reduce(*payloads, shapes=shapes, group=group, keys=keys)
    decoded = [codec.decode(total, _dims(g), g.dtype) for total, g in zip(sums, gradients, strict=True)]
    return decoded, [state for _, state in encoded]


def _gathered_sums(
    gradients: list[tf.Tensor], states: list[States], codec: Codec, group: Group, key: int
) -> tuple[list[tf.Tensor], list[States]]:
    """Gather all payloads at once; every member decodes all and adds them up in the same order."""
    encoded = [codec.encode(g, *state) for g, state in zip(gradients, states, strict=True)]
    sizes = [payload.shape[0] for payload, _ in encoded]
    of_all = gathered(tf.concat([payload for payload, _ in encoded], axis=0), group=group, key=key)
    parts = tf.split(tf.reshape(of_all, [group[0], sum(sizes)]), sizes, axis=1)
    words = cast("WordsCodec", bare(codec))
    decoded = [words.decode_sum(part, _dims(g), g.dtype) for part, g in zip(parts, gradients, strict=True)]
    return decoded, [state for _, state in encoded]


def _power_sums(
    gradients: list[tf.Tensor], states: list[States], group: Group, keys: tuple[int, ...]
) -> tuple[list[tf.Tensor], list[States]]:
    """Sum both factors over members; see `power_sums`."""
    n = len(gradients)
    flat = [tensor for state in states for tensor in state]
    matrices_and_products = projected(*gradients, *flat)
    matrices, products = matrices_and_products[:n], matrices_and_products[n:]
    lefts = directions(*_all_reduced(products, group, keys[0]))
    own = own_right_factors(*matrices, *lefts)
    rights = _all_reduced(own, group, keys[1])
    factors = [factor for _, factor in states]
    shapes = tuple(map(_dims, gradients))
    next_states = projection_states(*matrices, *lefts, *own, *rights, *factors, shapes=shapes)
    sums = sums_of_factors(*lefts, *rights, shapes=shapes, dtype=gradients[0].dtype.as_datatype_enum)
    return sums, _grouped(next_states, n)


def _all_reduced(values: list[tf.Tensor], group: Group, key: int) -> list[tf.Tensor]:
    return bucket_all_reduce(*values, shapes=tuple(_dims(v) for v in values), group=group, keys=(key,))


def _dims(value: tf.Tensor) -> Dims:
    return tuple(value.shape.as_list())
