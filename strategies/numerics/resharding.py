"""Variables in equal parts on all replicas: splitting, joining, and sums whose parts go to their replicas.

A part is a vector: a variable's values in row-major order, first those of the first replica. A part that is
too short is padded with the last value, so that an operation treats the padding like that value: with zeros,
there would be divisions by zero.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from strategies.numerics.collectives import carried, gathered, summed
from strategies.plan.sharding import MOST_MEMBERS_OF_A_TASK

Group = tuple[int, int]
"""Number of members of a collective, and key of their group."""
ON_HOST, ON_CORE = "/job:host", "/job:core"
"""Placeholder devices: of nodes on a host, and of variables; replaced when they are spliced."""
_DEFAULT = ""
COUNTS = ("reshards", "shards", "unshards", "sent_bytes")
"""Counts of a replica: requests for a program's format; how often a request split variables, and a later one
joined them again; and bytes sent for that."""
GAUGES = ("whole_bytes", "kept_bytes")
"""Bytes of a replica when it last split variables: of whole variables, and of the parts that it keeps."""
_NOTHING_DONE = (0,) * (len(COUNTS) + len(GAUGES))


def part_length(shape: Sequence[int], n_parts: int) -> int:
    """Length of a part of a variable."""
    return -(-math.prod(shape) // n_parts)


def part_of(value: tf.Tensor, place: tf.Tensor, *, n_parts: int) -> tf.Tensor:
    """Copy the part of a tensor of static shape that a replica keeps.

    Args:
        place: rank of this replica, int32.
    Returns:
        Tensor [part length].
    """
    flat = tf.reshape(value, [-1])
    size, length = math.prod(value.shape), part_length(value.shape, n_parts)
    if size % n_parts:
        return tf.gather(flat, tf.minimum(place * length + tf.range(length), size - 1))
    # A slice would keep all memory of its source allocated.
    return tf.raw_ops.DeepCopy(x=tf.slice(flat, [place * length], [length]))


def _parts_of(value: tf.Tensor, order: tuple[int, ...]) -> tf.Tensor:
    """Stack the replicas' parts in this order: [n_parts, part length]."""
    flat = tf.reshape(value, [-1])
    size, length = math.prod(value.shape), part_length(value.shape, len(order))
    if size % len(order):
        flat = tf.gather(flat, tf.minimum(tf.range(length * len(order)), size - 1))
    parts = tf.reshape(flat, [len(order), length])
    return parts if order == tuple(range(len(order))) else tf.gather(parts, order)


def whole_of(
    part: tf.Tensor, *, shape: tuple[int, ...], group: Group, order: tuple[int, ...], key: int
) -> tf.Tensor:
    """Join a variable from the parts of all replicas.

    Args:
        part: this replica's part, [part length].
        order: replica at each position of the group in collectives.
    """
    joined = gathered(part, group=group, key=key)
    if order != tuple(range(group[0])):
        parts = tf.split(joined, group[0])
        joined = tf.concat([parts[order.index(replica)] for replica in range(group[0])], axis=0)
    return tf.reshape(joined[: math.prod(shape)], shape)


def only_first(value: tf.Tensor, place: tf.Tensor) -> tf.Tensor:
    """Keep a tensor on the first replica and return zeros on all others; their sum is the first one's value.

    Args:
        place: rank of this replica, int32.
    """
    return tf.where(tf.equal(place, 0), value, tf.zeros_like(value))


def all_here(*, group: Group, key: int) -> tf.Tensor:
    """Tensor that exists once all replicas have run this collective."""
    return summed(tf.ones([1]), group=group, key=key)


def summed_part(
    value: tf.Tensor, place: tf.Tensor, *, group: Group, order: tuple[int, ...], key: int
) -> tf.Tensor:
    """Reduce-scatter: return this replica's part of the sum of a tensor over all replicas.

    Args:
        value: tensor of static shape.
        place: rank of this replica, int32.
        order: replica at each position of the group in collectives.
    Returns:
        Tensor [part length].
    """
    n_parts = group[0]
    if n_parts > MOST_MEMBERS_OF_A_TASK:
        return part_of(summed(value, group=group, key=key), place, n_parts=n_parts)

    def to_all(parts: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.CollectiveAllToAllV2(
            input=parts, group_size=n_parts, group_key=group[1], instance_key=key, ordering_token=[]
        )

    exchanged = carried(_parts_of(value, order), to_all, adds=False)
    # In the order of replicas, so that all compute the same sum.
    return tf.add_n([exchanged[order.index(other)] for other in range(n_parts)])


def resharded(
    *tensors: tf.Tensor,
    variables: tuple[tuple[tuple[int, ...], int], ...],
    group: Group,
    order: tuple[int, ...],
    keys: tuple[int, ...],
) -> tf.Operation:
    """Convert variables into the format that a key requests, unless they are already in it.

    Variables are whole in the default format, and in parts in any other. Values in the unused form are
    deleted, so that they use no memory.

    Args:
        tensors: handles of the whole variables, then of the parts; the key, strings [3]; the handle of the
            variable with the current format, which has no value while that is the default; the handle of the
            counts, int64, see `COUNTS` and `GAUGES`; and the replica's rank, int32.
        variables: shape and type of each variable.
        keys: one instance key per variable, and one more.
    """
    n_variables = len(variables)
    key, state, counts, place = tensors[2 * n_variables :]
    forms = _Forms(
        whole=tensors[:n_variables],
        parts=tensors[n_variables : 2 * n_variables],
        variables=variables,
        group=group,
        order=order,
        keys=keys,
        place=place,
    )
    with tf.device(ON_HOST):
        present = tf.cond(
            tf.raw_ops.VarIsInitializedOp(resource=state),
            lambda: tf.raw_ops.ReadVariableOp(resource=state, dtype=tf.string),
            lambda: tf.constant([_DEFAULT] * 3),
        )
        is_whole, be_whole = tf.equal(present[2], _DEFAULT), tf.equal(key[2], _DEFAULT)
        done = tf.cond(
            tf.equal(is_whole, be_whole),
            lambda: tf.constant(_NOTHING_DONE, tf.int64),
            lambda: tf.cond(be_whole, forms.put_together, forms.take_apart),
        )
        be_parted = tf.logical_not(be_whole)
        with tf.control_dependencies([done]):
            return tf.group(_assign(state, key), _assign(counts, _counted(counts, done, be_parted)))


def _counted(counts: tf.Tensor, done: tf.Tensor, is_due: tf.Tensor) -> tf.Tensor:
    """Update the counts after a call.

    Args:
        counts: handle of the previous counts, which may have no value.
        done: counts and gauges of this call, int64. is_due: True if the call requested a program's format,
            bool.
    """
    before = tf.cond(
        tf.raw_ops.VarIsInitializedOp(resource=counts),
        lambda: tf.raw_ops.ReadVariableOp(resource=counts, dtype=tf.int64),
        lambda: tf.constant(_NOTHING_DONE, tf.int64),
    )
    n = len(COUNTS)
    calls = tf.concat([tf.cast([is_due], tf.int64), tf.zeros([n - 1], tf.int64)], axis=0)
    latest = tf.where(done[1] > 0, done[n:], before[n:])
    return tf.concat([before[:n] + done[:n] + calls, latest], axis=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forms:
    """Whole and partitioned form of a replica's variables; only one of them has values; see `resharded`.

    Attributes:
        whole, parts: handles of the variables in this form.
        place: rank of this replica, int32.
    """

    whole: Sequence[tf.Tensor]
    parts: Sequence[tf.Tensor]
    variables: Sequence[tuple[tuple[int, ...], int]]
    group: Group
    order: tuple[int, ...]
    keys: Sequence[int]
    place: tf.Tensor

    def take_apart(self) -> tf.Tensor:
        """Keep only the parts; return the operations done, in the order of `COUNTS` and `GAUGES`."""
        with tf.device(ON_CORE):
            assigned = [
                _assign(part, part_of(_read(one, shape, dtype), self.place, n_parts=self.group[0]))
                for one, part, (shape, dtype) in zip(self.whole, self.parts, self.variables, strict=True)
            ]
        with tf.control_dependencies(assigned), tf.device(ON_CORE):
            # Replicas may share a variable, which no replica deletes before all have their parts.
            all_have_theirs = all_here(group=self.group, key=self.keys[-1])
        with tf.control_dependencies([all_have_theirs]):
            deleted = _given_up(self.whole)
        with tf.control_dependencies(deleted):
            return tf.concat([tf.constant((0, 1, 0, 0), tf.int64), self._gauges()], axis=0)

    def put_together(self) -> tf.Tensor:
        """Keep only whole variables; return the operations done, in the order of `COUNTS` and `GAUGES`."""
        assigned = []
        with tf.device(ON_CORE):
            for one, part, (shape, dtype), key in zip(
                self.whole, self.parts, self.variables, self.keys, strict=False
            ):
                own = _read(part, (part_length(shape, self.group[0]),), dtype)
                whole = whole_of(own, shape=shape, group=self.group, order=self.order, key=key)
                assigned.append(_assign(one, whole))
        with tf.control_dependencies(assigned):
            deleted = _given_up(self.parts)
        n_others = self.group[0] - 1
        sent_bytes = sum(
            n_others * part_length(shape, self.group[0]) * _element_bytes(dtype)
            for shape, dtype in self.variables
        )
        with tf.control_dependencies(deleted):
            return tf.constant((0, 0, 1, sent_bytes, 0, 0), tf.int64)

    def _gauges(self) -> tf.Tensor:
        whole_bytes = [math.prod(shape) * _element_bytes(dtype) for shape, dtype in self.variables]
        left = [
            tf.cast(tf.raw_ops.VarIsInitializedOp(resource=handle), tf.int64) * n_bytes
            for handle, n_bytes in zip(self.whole, whole_bytes, strict=True)
        ]
        part_bytes = [
            tf.raw_ops.VariableShape(input=part, out_type=tf.int64)[0] * _element_bytes(dtype)
            for part, (_, dtype) in zip(self.parts, self.variables, strict=True)
        ]
        kept_bytes = tf.reduce_sum(tf.stack([tf.constant(0, tf.int64), *left, *part_bytes]))
        return tf.stack([tf.constant(sum(whole_bytes), tf.int64), kept_bytes])


def _element_bytes(dtype: int) -> int:
    return int(tf.as_dtype(dtype).size)


def _given_up(handles: Sequence[tf.Tensor]) -> list[tf.Operation]:
    with tf.device(ON_CORE):
        return [tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True) for handle in handles]


def _read(handle: tf.Tensor, shape: tuple[int, ...], dtype: int) -> tf.Tensor:
    return tf.ensure_shape(tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.as_dtype(dtype)), shape)


def _assign(handle: tf.Tensor, value: tf.Tensor) -> tf.Operation:
    return tf.raw_ops.AssignVariableOp(resource=handle, value=value)
