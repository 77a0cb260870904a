"""Weights, sums and rows of contributions, and the arithmetic of semi-synchronous steps."""

from itertools import accumulate

import tensorflow as tf


def weighted_sum(*values: tf.Tensor, weights: tuple[float, ...]) -> tf.Tensor:
    """Weighted sum of values, exact if the weights are ones and zeros.

    Args:
        values: tensors of one shape and type.
        weights: one weight per value; integer tensors allow only 1 and 0.
    """
    terms = [_weighted(v, w) for v, w in zip(values, weights, strict=True)]
    return terms[0] if len(terms) == 1 else tf.add_n(terms)


def _weighted(value: tf.Tensor, weight: float) -> tf.Tensor:
    if weight == 1.0:
        return value
    # Values of weight zero must not matter even if they are NaN.
    return tf.zeros_like(value) if weight == 0.0 else value * tf.constant(weight, value.dtype)


def running_sums(*values: tf.Tensor, weights: tuple[float, ...]) -> list[tf.Tensor]:
    """Weighted sums of the first value, of the first two, … of all, each from its predecessor.

    Args:
        values: tensors of one shape and type. weights: one weight per value, see `weighted_sum`.
    """
    terms = (_weighted(v, w) for v, w in zip(values, weights, strict=True))
    return list(accumulate(terms, tf.add))


def split_examples(batch: tf.Tensor, *, sizes: tuple[int, ...]) -> list[tf.Tensor]:
    """Split a worker's examples into shards [size, …], in order."""
    return tf.split(batch, list(sizes), axis=0)  # type: ignore[no-any-return]


def concat_rows(*tensors: tf.Tensor, weights: tuple[float, ...]) -> tuple[tf.Tensor, tf.Tensor]:
    """Concatenate all replicas' weighted rows, and their ids.

    Args:
        tensors: rows [n_i, …] of every replica, then ids [n_i] of every replica.
    """
    rows, ids = tensors[: len(weights)], tensors[len(weights) :]
    scaled = [r if w == 1.0 else r * tf.constant(w, r.dtype) for r, w in zip(rows, weights, strict=True)]
    if len(weights) == 1:
        return scaled[0], ids[0]
    return tf.concat(scaled, axis=0), tf.concat(list(ids), axis=0)


def merge_rows(rows: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Merge rows: one row per id, rows of equal ids summed, ids in order of first appearance.

    Args:
        rows: [n, …]. ids: [n].
    Returns:
        Rows [n_unique, …] and ids [n_unique], in their types.
    """
    unique, position = tf.unique(ids)
    return tf.math.unsorted_segment_sum(rows, position, tf.size(unique)), unique


def merge_ascending(rows: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Merge rows for a sparse accumulator: one row per id, rows of equal ids summed, ids ascending, int64.

    Args:
        rows: [n, …]. ids: [n].
    """
    merged, unique = merge_rows(rows, ids)
    order = tf.argsort(unique)
    return tf.gather(merged, order), tf.cast(tf.gather(unique, order), tf.int64)


def number_rows(rows: tf.Tensor, ids: tf.Tensor, *, n_ids: int, first: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Give rows unique ascending ids, so that a sparse accumulator adds up no two of them.

    Args:
        rows: tensor [n, …]. ids: tensor [n], from 0 to n_ids - 1.
        first: number of the first row.
    Returns:
        Rows, and their new ids: number of the row × n_ids + id, int64 [n].
    """
    numbers = first + tf.range(tf.size(ids, out_type=tf.int64), dtype=tf.int64)
    return rows, numbers * n_ids + tf.cast(ids, tf.int64)


def later_numbers(numbered: tf.Tensor, n_before: tf.Tensor, *, stride: int, n_slots: int) -> tf.Tensor:
    """Shift numbered ids behind those of the contributions that an accumulator already holds.

    Args:
        numbered: ids [n] that `number_rows` has numbered from 0.
        n_before: number of contributions held.
        stride: distance between the first ids of two contributions. n_slots: number of contributions after
            which ids start again at 0.
    """
    return numbered + tf.cast(n_before % n_slots, tf.int64) * stride


def numbered_ids(numbered: tf.Tensor, *, n_ids: int, dtype: str) -> tf.Tensor:
    """Original ids of numbered rows: [n]."""
    return tf.cast(numbered % n_ids, dtype)


def dense_rows(rows: tf.Tensor, ids: tf.Tensor, *, n_rows: int, shape: tuple[int, ...]) -> tf.Tensor:
    """Dense tensor of these rows, with rows of equal ids summed and zeros elsewhere.

    Args:
        rows: tensor [n, …]. ids: tensor [n], from 0 to n_rows - 1.
        shape: shape of the result; its first axis has n_rows.
    """
    return tf.ensure_shape(tf.math.unsorted_segment_sum(rows, ids, n_rows), shape)


def all_ids(*, n_rows: int, dtype: str) -> tf.Tensor:
    """Ids of all rows: [n_rows]."""
    return tf.range(n_rows, dtype=dtype)


def cast_ids(ids: tf.Tensor, *, dtype: str) -> tf.Tensor:
    """Ids in another integer type."""
    return tf.cast(ids, dtype)


def share(*, value: float) -> tf.Tensor:
    """Worker's share of the global batch, a scalar."""
    return tf.constant(value, tf.float64)


def share_of(values: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
    """Mean of contributions that were weighted by their share of the global batch.

    Args:
        values: sum of the weighted contributions.
        total: sum of their shares, a scalar; 1 if none is missing.
    """
    return values / tf.cast(total, values.dtype)


def one_more(n_updates: tf.Tensor) -> tf.Tensor:
    """Number of updates after the next one."""
    return n_updates + 1


def newest(first: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """Largest of a step number and other step numbers [n]; n may be 0."""
    return tf.reduce_max(tf.concat([tf.expand_dims(first, 0), others], axis=0))


def progress(step: tf.Tensor, own: tf.Tensor, n_updates: tf.Tensor) -> tf.Tensor:
    """Step that a worker has reached, and 1 if its contribution to `own` was too late: [2]."""
    return tf.stack([step, tf.cast(own < n_updates, step.dtype)])


def every(step: tf.Tensor, *, period: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Count steps, and open a gate in the first step and every `period`-th step after it.

    Args:
        step: number of steps since the gate was open, int64 scalar.
    Returns:
        Count for the next step, and the gate: a tensor that exists only in steps in which the gate is open,
        so that in all other steps TensorFlow skips the operations that wait for it.
    """
    is_open = tf.equal(step, 0)
    _, gate = tf.raw_ops.Switch(data=is_open, pred=is_open)
    return (step + 1) % period, tf.identity(gate)
