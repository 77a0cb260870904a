"""Arithmetic of a host loop beside its steps: their number, the batch of each, and the losses of all."""

import tensorflow as tf


def n_steps(batches: tf.Tensor) -> tf.Tensor:
    """Number of steps that there are batches for.

    Args:
        batches: [n_steps, …].
    """
    return tf.shape(batches)[0]


def step_batch(batches: tf.Tensor, step: tf.Tensor, *, sizes: tuple[int, ...]) -> list[tf.Tensor]:
    """Batch of each replica in a step.

    Args:
        batches: [n_steps, n_examples, …]. sizes: examples of each replica, which add up to all.
    """
    batch = tf.gather(batches, step)
    return [batch] if len(sizes) == 1 else tf.split(batch, sizes)


def one_batch(batches: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
    """Batch of one replica in a step.

    Args:
        batches: [n_steps, n_examples, …].
    """
    return tf.gather(batches, step)


def replica_batches(batches: tf.Tensor, *, sizes: tuple[int, ...]) -> list[tf.Tensor]:
    """Batches of each replica in all steps.

    Args:
        batches: [n_steps, n_examples, …]. sizes: examples of each replica, which add up to all.
    """
    return [batches] if len(sizes) == 1 else tf.split(batches, sizes, axis=1)


def next_step(step: tf.Tensor) -> tf.Tensor:
    """The number of the step after one."""
    return step + 1


def goes_on(step: tf.Tensor, limit: tf.Tensor) -> tf.Tensor:
    """True if there is such a step."""
    return step < limit


def no_losses(*, dtype: int) -> tf.Tensor:
    """Losses before the first step, to which others can be appended."""
    return tf.compat.v1.placeholder_with_default(tf.zeros([0], tf.as_dtype(dtype)), [None])


def no_result(*, dtype: int) -> tf.Tensor:
    """A result before the first step, whatever shape it will have."""
    return tf.compat.v1.placeholder_with_default(tf.zeros([], tf.as_dtype(dtype)), None)


def with_loss(losses: tf.Tensor, loss: tf.Tensor) -> tf.Tensor:
    """Losses of one step more."""
    return tf.concat([losses, tf.reshape(loss, [1])], axis=0)
