"""TensorFlow functions around collectives and the workers' own transport, and the types they carry."""

import math
from collections.abc import Callable, Sequence
from itertools import islice

import tensorflow as tf

from strategies.numerics.combine import concat_rows, merge_rows
from strategies.numerics.parts import join_rows, split_rows


def joined(*values: tf.Tensor) -> tf.Tensor:
    """Concatenate the flattened values, at least one, of the same type."""
    flat = [tf.reshape(value, [-1]) for value in values]
    return flat[0] if len(flat) == 1 else tf.concat(flat, axis=0)


def apart(vector: tf.Tensor, *, shapes: Sequence[tuple[int, ...]]) -> list[tf.Tensor]:
    """Split a vector into tensors of these shapes."""
    sizes = [math.prod(shape) for shape in shapes]
    parts = [vector] if len(sizes) == 1 else tf.split(vector, sizes)
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]


IN_ORDER = "nccl"
"""Implementation whose members hang unless all of them start their sums in the same order.

TensorFlow starts NCCL's kernels as they become ready and leaves their order to the graph (NcclCommunicator in
tensorflow/core/nccl/collective_communicator.cc).
"""


# Types without kernels in TensorFlow's collectives, and the types that carry them.
_WIDER = {tf.int8: tf.int32, tf.uint8: tf.int32, tf.int16: tf.int32, tf.uint16: tf.int32}
_SAME_BITS = {
    tf.uint32: tf.int32,
    tf.uint64: tf.int64,
    tf.complex64: tf.float32,
    tf.complex128: tf.float64,
}
"""Types with bitwise equal sums: integers wrap around equally, complex numbers have two parts."""
_MOVED_AS = {tf.bfloat16: tf.float16, tf.int16: tf.float16, tf.uint16: tf.float16}
"""Types of the same size, for values without arithmetic."""


def carried(value: tf.Tensor, across: Callable[[tf.Tensor], tf.Tensor], *, adds: bool) -> tf.Tensor:
    """Apply a collective and return the result in the tensor's own type.

    Args:
        value: tensor [n, …].
        across: collective along the first axis.
        adds: True if the collective sums members' tensors, False if it moves them unchanged.
    """
    kind = value.dtype
    same = _SAME_BITS.get(kind) or (None if adds else _MOVED_AS.get(kind))
    if same is not None:
        return tf.bitcast(across(tf.bitcast(value, same)), kind)
    if kind in _WIDER:
        return tf.cast(across(tf.cast(value, _WIDER[kind])), kind)
    return across(value)


def summed(
    value: tf.Tensor, *, group: tuple[int, int], key: int | tf.Tensor, hint: str = "auto"
) -> tf.Tensor:
    """Sum a tensor over all members.

    Args:
        group: (number of members, group key). key: instance key. hint: `auto`, `ring` or `nccl`.
    """

    def added(part: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.CollectiveReduceV2(
            input=part,
            group_size=group[0],
            group_key=group[1],
            instance_key=key,
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
            communication_hint=hint,
        )

    return carried(value, added, adds=True)


def gathered(
    value: tf.Tensor, *, group: tuple[int, int], key: int | tf.Tensor, hint: str = "auto"
) -> tf.Tensor:
    """Concatenate all members' tensors along the first axis, in the members' order.

    Args:
        group: (number of members, group key). key: instance key. hint: `auto`, `ring` or `nccl`.
    """

    def by_all(part: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.CollectiveGatherV2(
            input=part,
            group_size=group[0],
            group_key=group[1],
            instance_key=key,
            ordering_token=[],
            communication_hint=hint,
        )

    return carried(value, by_all, adds=False)


def bucket_all_reduce(
    *values: tf.Tensor,
    shapes: tuple[tuple[int, ...], ...],
    group: tuple[int, int],
    keys: Sequence[int | tf.Tensor],
    hint: str = "auto",
) -> list[tf.Tensor]:
    """Sum each tensor over all members, flattened into one buffer that travels in pieces.

    Args:
        values: tensors of one type, of the static shapes `shapes`.
        group: (number of members, group key).
        keys: one instance key per piece; pieces are sent concurrently. A single key for `IN_ORDER`.
        hint: TensorFlow's implementation, `auto`, `ring` or `nccl`.
    Returns:
        Sums in the shapes of the values.
    """
    assert len(keys) == 1 or hint != IN_ORDER
    buffer = joined(*values)
    pieces = piece_sizes(sum(map(math.prod, shapes)), len(keys))
    parts = [buffer] if len(keys) == 1 else tf.split(buffer, pieces)
    sums = [summed(part, group=group, key=key, hint=hint) for part, key in zip(parts, keys, strict=True)]
    return apart(sums[0] if len(sums) == 1 else tf.concat(sums, axis=0), shapes=shapes)


def keyed_all_reduce(
    *tensors: tf.Tensor, shapes: tuple[tuple[int, ...], ...], group: tuple[int, int], hint: str
) -> list[tf.Tensor]:
    """`bucket_all_reduce` for buckets that differ only in their keys.

    Args:
        tensors: values, then one instance key per piece.
    """
    values, keys = tensors[: len(shapes)], tensors[len(shapes) :]
    return bucket_all_reduce(*values, shapes=shapes, group=group, keys=keys, hint=hint)


def gather_vectors(
    vector: tf.Tensor, *, group: tuple[int, int], key: int, size: int, order: tuple[int, ...]
) -> tf.Tensor:
    """Concatenate all members' vectors, in the order of their ranks: [n · size].

    Args:
        vector: tensor [size]; nothing is gathered if the size is 0.
        group: (number of members, group key). key: instance key.
        order: for each place of the group, its member's place among all by rank.
    """
    if not size:
        return tf.zeros([0], vector.dtype)
    vectors = gathered(vector, group=group, key=key)
    if order == tuple(range(group[0])):
        return vectors
    return tf.reshape(tf.gather(tf.reshape(vectors, [-1, size]), places_by_rank(order)), [-1])


def places_by_rank(order: tuple[int, ...]) -> list[int]:
    """Place in the group of each member by rank."""
    return sorted(range(len(order)), key=order.__getitem__)


def gather_rows(
    rows: tf.Tensor,
    ids: tf.Tensor,
    *,
    group: tuple[int, int],
    length_key: int,
    row_keys: int,
    id_keys: int,
    order: tuple[int, ...],
) -> tuple[tf.Tensor, tf.Tensor]:
    """Concatenate all members' rows and ids, in the order of ranks; they may have different numbers of rows.

    Members first exchange their numbers of rows; then all pad to the largest number, and the padding is
    dropped.

    Args:
        rows: tensor [n, …]. ids: tensor [n].
        row_keys, id_keys: first instance key of the range reserved for gathers of 1, 2, … rows.
        order: for each place of the group, its member's place among all by rank.
    """
    length = tf.size(ids)
    lengths = gathered(tf.reshape(length, [1]), group=group, key=length_key)
    longest = tf.maximum(tf.reduce_max(lengths), 1)
    missing = longest - length

    def of_all(part: tf.Tensor, first_key: int) -> tf.Tensor:
        padded = tf.pad(part, [[0, missing]] + [[0, 0]] * (part.shape.rank - 1))
        return gathered(padded, group=group, key=first_key + longest - 1)

    if order == tuple(range(group[0])):
        present = tf.where(tf.reshape(tf.sequence_mask(lengths, longest), [-1]))[:, 0]
    else:
        places = tf.constant(places_by_rank(order), lengths.dtype)
        by_rank = tf.range(longest)[None] + longest * places[:, None]
        present = tf.boolean_mask(by_rank, tf.sequence_mask(tf.gather(lengths, places), longest))
    return tf.gather(of_all(rows, row_keys), present), tf.gather(of_all(ids, id_keys), present)


def piece_sizes(total: int, n: int) -> list[int]:
    """Sizes of n nearly equal pieces, the longer ones first."""
    share, extra = divmod(total, n)
    return [share + (i < extra) for i in range(n)]


def hand_over(
    *values: tf.Tensor, counts: tuple[int, ...], n_replicas: int, dtype: int
) -> tuple[tf.Operation]:
    """Pass the sums over this worker's replicas to the transport, one vector per share, without waiting.

    Args:
        values: all tensors of the first replica, share after share, then those of the second, and so on; of
            one type.
        counts: number of tensors in each share.
        dtype: TensorFlow's number of the tensors' type.
    """
    rest = iter(values)
    by_replica = [[_joined(list(islice(rest, n)), dtype) for n in counts] for _ in range(n_replicas)]
    shares = [
        vectors[0] if n_replicas == 1 else tf.add_n(vectors) for vectors in zip(*by_replica, strict=True)
    ]
    return (tf.raw_ops.PyFunc(input=shares, token="", Tout=[]),)


def take_back(*, shares: tuple[tuple[tuple[int, ...], ...], ...], dtype: int) -> list[tf.Tensor]:
    """Wait for the transport's results, one vector per share.

    Args:
        shares: shapes of the tensors of each share. dtype: TensorFlow's number of the tensors' type.
    Returns:
        Tensors, share after share.
    """
    vectors = tf.raw_ops.PyFunc(input=[], token="", Tout=[tf.as_dtype(dtype)] * len(shares))
    return [
        tensor
        for vector, shapes in zip(vectors, shares, strict=True)
        for tensor in apart(tf.ensure_shape(vector, [sum(map(math.prod, shapes))]), shapes=shapes)
    ]


def hand_over_rows(
    *tensors: tf.Tensor, n_replicas: int, merged: tuple[bool, ...], starts: tuple[tuple[int, ...], ...]
) -> tuple[tf.Operation]:
    """Pass the rows and ids of this worker's replicas to the transport, without waiting.

    Args:
        tensors: for each sparse gradient: rows [n, …] of every replica and range, then ids [n] of these.
        merged: for each sparse gradient, True if rows of equal ids are summed.
        starts: for each sparse gradient, first row of each range of its table.
    """
    vectors: list[tf.Tensor] = []
    rest = iter(tensors)
    for is_merged, firsts in zip(merged, starts, strict=True):
        n = len(firsts)
        parts = list(islice(rest, 2 * n * n_replicas))
        replicas = [
            (*parts[k * n : (k + 1) * n], *parts[(n_replicas + k) * n : (n_replicas + k + 1) * n])
            for k in range(n_replicas)
        ]
        wholes = replicas if n == 1 else [join_rows(*own, starts=firsts) for own in replicas]
        values, numbers = zip(*wholes, strict=True)
        rows, ids = concat_rows(*values, *numbers, weights=(1.0,) * n_replicas)
        if is_merged:
            rows, ids = merge_rows(rows, ids)
        vectors += [tf.reshape(rows, [-1]), ids]
    return (tf.raw_ops.PyFunc(input=vectors, token="", Tout=[]),)


def take_back_rows(
    *,
    dims: tuple[tuple[int, ...], ...],
    dtypes: tuple[tuple[int, int], ...],
    starts: tuple[tuple[int, ...], ...],
) -> list[tf.Tensor]:
    """Wait for the rows of all workers and their ids.

    Args:
        dims: shape of one row of each sparse gradient.
        dtypes: TensorFlow's numbers of the types of the rows and ids of each sparse gradient.
        starts: for each sparse gradient, first row of each range of its table.
    Returns:
        For each gradient: rows [n, …] of each range, then ids [n] of each range.
    """
    types = [tf.as_dtype(dtype) for pair in dtypes for dtype in pair]
    vectors = tf.raw_ops.PyFunc(input=[], token="", Tout=types)
    pieces: list[tf.Tensor] = []
    for rows, ids, shape, firsts in zip(vectors[::2], vectors[1::2], dims, starts, strict=True):
        values, numbers = tf.reshape(rows, [tf.size(ids), *shape]), tf.reshape(ids, [-1])
        pieces += [values, numbers] if len(firsts) == 1 else split_rows(values, numbers, starts=firsts)
    return pieces


def waypoint() -> tuple[tf.Operation]:
    """Do nothing: a node that others can wait for."""
    return (tf.no_op(),)


def _joined(values: Sequence[tf.Tensor], dtype: int) -> tf.Tensor:
    return joined(*values) if values else tf.zeros([0], tf.as_dtype(dtype))
