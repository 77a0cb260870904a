"""Weights, sums and rows of contributions, and the arithmetic of steps that do not wait for all."""

from itertools import accumulate

import tensorflow as tf


def weighted_sum(*values: tf.Tensor, weights: tuple[float, ...]) -> tf.Tensor:
    """The sum of values times weights, exact where a weight is one or zero.

    Args:
        values: tensors of one shape and type.
        weights: one for each; integers take ones and zeros only.
    """
    terms = [_weighted(v, w) for v, w in zip(values, weights, strict=True)]
    return terms[0] if len(terms) == 1 else tf.add_n(terms)


def _weighted(value: tf.Tensor, weight: float) -> tf.Tensor:
    if weight == 1.0:
        return value
    # Values of weight zero must not matter even if they are NaN.
    return tf.zeros_like(value) if weight == 0.0 else value * tf.constant(weight, value.dtype)


def running_sums(*values: tf.Tensor, weights: tuple[float, ...]) -> list[tf.Tensor]:
    """The weighted sum of the first value, of the first two, … of all: each needs only its predecessor.

    Args:
        values: tensors of one shape and type. weights: as for `weighted_sum`.
    """
    terms = (_weighted(v, w) for v, w in zip(values, weights, strict=True))
    return list(accumulate(terms, tf.add))


def split_examples(batch: tf.Tensor, *, sizes: tuple[int, ...]) -> list[tf.Tensor]:
    """The shards of a worker's examples, [size, …] each, in order."""
    return tf.split(batch, list(sizes), axis=0)  # type: ignore[no-any-return]


def concat_rows(*tensors: tf.Tensor, weights: tuple[float, ...]) -> tuple[tf.Tensor, tf.Tensor]:
    """All replicas' rows, weighted, and their ids, one after the other.

    Args:
        tensors: rows [n_i, …] of each replica, then ids [n_i] of each replica.
    """
    rows, ids = tensors[: len(weights)], tensors[len(weights) :]
    scaled = [r if w == 1.0 else r * tf.constant(w, r.dtype) for r, w in zip(rows, weights, strict=True)]
    if len(weights) == 1:
        return scaled[0], ids[0]
    return tf.concat(scaled, axis=0), tf.concat(list(ids), axis=0)


def merge_rows(rows: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """One row per id, equal ids summed, ids in the order of their first appearance.

    Args:
        rows: [n, …]. ids: [n].
    Returns:
        rows [n_unique, …] and ids [n_unique], in their types.
    """
    unique, position = tf.unique(ids)
    return tf.math.unsorted_segment_sum(rows, position, tf.size(unique)), unique


def merge_ascending(rows: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """One row per id, equal ids summed, ids ascending as int64: what a sparse accumulator takes.

    Args:
        rows: [n, …]. ids: [n].
    """
    merged, unique = merge_rows(rows, ids)
    order = tf.argsort(unique)
    return tf.gather(merged, order), tf.cast(tf.gather(unique, order), tf.int64)


def number_rows(rows: tf.Tensor, ids: tf.Tensor, *, n_ids: int, first: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Rows and ids that are all different and ascend, so that a sparse accumulator adds up no two of them.

    Args:
        rows: [n, …]. ids: [n], from 0 to n_ids.
        first: number of the first row.
    Returns:
        the rows, and number of the row × n_ids + id as int64 [n].
    """
    numbers = first + tf.range(tf.size(ids, out_type=tf.int64), dtype=tf.int64)
    return rows, numbers * n_ids + tf.cast(ids, tf.int64)


def later_numbers(numbered: tf.Tensor, n_before: tf.Tensor, *, stride: int, n_slots: int) -> tf.Tensor:
    """Numbered ids after those of the contributions that an accumulator holds already.

    Args:
        numbered: [n], as `number_rows` makes them from 0.
        n_before: contributions that are held.
        stride: between the first ids of two contributions. n_slots: after so many they begin anew.
    """
    return numbered + tf.cast(n_before % n_slots, tf.int64) * stride


def numbered_ids(numbered: tf.Tensor, *, n_ids: int, dtype: str) -> tf.Tensor:
    """The ids of numbered rows: [n]."""
    return tf.cast(numbered % n_ids, dtype)


def dense_rows(rows: tf.Tensor, ids: tf.Tensor, *, n_rows: int, shape: tuple[int, ...]) -> tf.Tensor:
    """A dense tensor of these rows, those of equal ids summed, and zeros elsewhere.

    Args:
        rows: [n, …]. ids: [n], from 0 to n_rows.
        shape: of the result, n_rows first.
    """
    return tf.ensure_shape(tf.math.unsorted_segment_sum(rows, ids, n_rows), shape)


def all_ids(*, n_rows: int, dtype: str) -> tf.Tensor:
    """The ids of all rows: [n_rows]."""
    return tf.range(n_rows, dtype=dtype)


def cast_ids(ids: tf.Tensor, *, dtype: str) -> tf.Tensor:
    """Ids in another integer type."""
    return tf.cast(ids, dtype)


def share(*, value: float) -> tf.Tensor:
    """A worker's share of the global batch, a scalar."""
    return tf.constant(value, tf.float64)


def share_of(values: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
    """The mean of contributions that were weighted by their share of the global batch.

    Args:
        values: their sum.
        total: the sum of their shares, a scalar; 1 when all are there.
    """
    return values / tf.cast(total, values.dtype)


def one_more(n_updates: tf.Tensor) -> tf.Tensor:
    """The number of updates after the next one."""
    return n_updates + 1


def newest(first: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """The largest of a step number and of others, [n], of which there may be none."""
    return tf.reduce_max(tf.concat([tf.expand_dims(first, 0), others], axis=0))


def progress(step: tf.Tensor, own: tf.Tensor, n_updates: tf.Tensor) -> tf.Tensor:
    """The step that a worker has reached, and whether its contribution to `own` was too late; [2]."""
    return tf.stack([step, tf.cast(own < n_updates, step.dtype)])


def every(step: tf.Tensor, *, period: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Count steps, and open a gate in the first one and in every `period`-th after it.

    Args:
        step: steps since the gate was open, int64 scalar.
    Returns:
        the count for the next step, and the gate: a tensor that exists only in the steps in which it is open,
        so that TensorFlow leaves out in all others what waits for it.
    """
    is_open = tf.equal(step, 0)
    _, gate = tf.raw_ops.Switch(data=is_open, pred=is_open)
    return (step + 1) % period, tf.identity(gate)
