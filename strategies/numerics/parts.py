"""Split a variable's values along an axis and join them, including lookups by id and sparse rows."""

import tensorflow as tf


def join_parts(*parts: tf.Tensor, axis: int) -> tf.Tensor:
    """Join consecutive ranges along an axis."""
    return tf.concat(list(parts), axis=axis)


def split_parts(whole: tf.Tensor, *, axis: int, sizes: tuple[int, ...]) -> list[tf.Tensor]:
    """Split a tensor into consecutive ranges of these lengths along an axis."""
    # Equal parts need no list of sizes in the graph.
    number = len(sizes) if len(set(sizes)) == 1 else list(sizes)
    return tf.split(whole, number, axis=axis)  # type: ignore[no-any-return]


def split_ids(ids: tf.Tensor, *, starts: tuple[int, ...]) -> tuple[tf.Tensor, ...]:
    """Split ids by the part that holds them.

    An id below 0 goes to the first part and an id beyond the end to the last; their lookup refuses it.

    Args:
        ids: tensor of any shape, in any order. starts: first id of each part, ascending.
    Returns:
        For each part, its ids relative to its start, [n_p]; then for each part, the positions of these ids in
        the flattened `ids`, int32 [n_p].
    """
    flat = tf.reshape(ids, [-1])
    part = part_of(flat, starts)
    local = tf.dynamic_partition(flat - tf.gather(tf.constant(starts, ids.dtype), part), part, len(starts))
    places = tf.dynamic_partition(tf.range(tf.size(flat)), part, len(starts))
    return *local, *places


def stitch_rows(ids: tf.Tensor, *tensors: tf.Tensor) -> tf.Tensor:
    """Join the rows that parts looked up, in the order of the ids.

    Args:
        ids: argument of `split_ids`. tensors: positions of each part, then rows [n_p, …] of each part.
    Returns:
        Rows in the shape of the ids, [*ids.shape, …].
    """
    n = len(tensors) // 2
    rows = tf.dynamic_stitch(list(tensors[:n]), list(tensors[n:]))
    return tf.reshape(rows, tf.concat([tf.shape(ids), tf.shape(tensors[n])[1:]], axis=0))


def split_rows(rows: tf.Tensor, ids: tf.Tensor, *, starts: tuple[int, ...]) -> tuple[tf.Tensor, ...]:
    """Split a sparse gradient by the part that holds each id.

    Args:
        rows: [n, …]. ids: [n]. starts: first id of each part, ascending.
    Returns:
        For each part, its rows [n_p, …]; then for each part, its ids relative to its start [n_p].
    """
    part = part_of(ids, starts)
    local = ids - tf.gather(tf.constant(starts, ids.dtype), part)
    return (
        *tf.dynamic_partition(rows, part, len(starts)),
        *tf.dynamic_partition(local, part, len(starts)),
    )


def join_rows(*tensors: tf.Tensor, starts: tuple[int, ...]) -> tuple[tf.Tensor, tf.Tensor]:
    """Join the rows of parts: the inverse of `split_rows`, with rows in the order of the parts.

    Args:
        tensors: rows of each part, then ids of each part. starts: first id of each part, ascending.
    Returns:
        Rows and ids of the whole.
    """
    rows, ids = tensors[: len(starts)], tensors[len(starts) :]
    of_whole = [own if start == 0 else own + start for own, start in zip(ids, starts, strict=True)]
    return tf.concat(list(rows), axis=0), tf.concat(of_whole, axis=0)


def part_of(ids: tf.Tensor, starts: tuple[int, ...]) -> tf.Tensor:
    """Number of the part that holds each id, int32.

    Args:
        ids: [n]. starts: first id of each part, ascending.
    """
    return tf.searchsorted(tf.constant(starts[1:], ids.dtype), ids, side="right")


def total(*parts: tf.Tensor, how: str) -> tf.Tensor:
    """Combine the reductions of the parts into the reduction of the whole.

    Args:
        how: reduction: `add`, `multiply`, `maximum`, `minimum`, `and` or `or`.
    """
    if how == "add":
        return tf.add_n(list(parts))
    combine = {
        "multiply": tf.multiply,
        "maximum": tf.maximum,
        "minimum": tf.minimum,
        "and": tf.logical_and,
        "or": tf.logical_or,
    }[how]
    result = parts[0]
    for part in parts[1:]:
        result = combine(result, part)
    return result
