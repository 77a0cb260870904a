"""The little arithmetic of updates that do not wait for all workers."""

import tensorflow as tf


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
    """The step that a worker has come to, and whether its contribution to `own` was too late; [2]."""
    return tf.stack([step, tf.cast(own < n_updates, step.dtype)])
