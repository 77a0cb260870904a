"""Arithmetic of a host loop around its steps: number of steps, each step's batch, and all losses."""

import tensorflow as tf


def n_steps(batches: tf.Tensor) -> tf.Tensor:
    """Number of steps for which there are batches.

    Args:
        batches: tensor [n_steps, …].
    """
    return tf.shape(batches)[0]


def step_batch(batches: tf.Tensor, step: tf.Tensor, *, sizes: tuple[int, ...]) -> list[tf.Tensor]:
    """Batch of each replica in a step.

    Args:
        batches: tensor [n_steps, n_examples, …]. sizes: examples per replica, which add up to n_examples.
    """
    batch = tf.gather(batches, step)
    return [batch] if len(sizes) == 1 else tf.split(batch, sizes)


def one_batch(batches: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
    """Batch of one replica in a step.

    Args:
        batches: tensor [n_steps, n_examples, …].
    """
    return tf.gather(batches, step)


def replica_batches(batches: tf.Tensor, *, sizes: tuple[int, ...]) -> list[tf.Tensor]:
    """Batches of each replica in all steps.

    Args:
        batches: tensor [n_steps, n_examples, …]. sizes: examples per replica, which add up to n_examples.
    """
    return [batches] if len(sizes) == 1 else tf.split(batches, sizes, axis=1)


def next_step(step: tf.Tensor) -> tf.Tensor:
    """Number of the next step."""
    return step + 1


def goes_on(step: tf.Tensor, limit: tf.Tensor) -> tf.Tensor:
    """True if the step number is below the limit."""
    return step < limit


def no_losses(*, dtype: int) -> tf.Tensor:
    """Empty list of losses, to which losses can be appended."""
    return tf.compat.v1.placeholder_with_default(tf.zeros([0], tf.as_dtype(dtype)), [None])


def no_result(*, dtype: int) -> tf.Tensor:
    """Placeholder for a result before the first step, of unknown shape."""
    return tf.compat.v1.placeholder_with_default(tf.zeros([], tf.as_dtype(dtype)), None)


def with_loss(losses: tf.Tensor, loss: tf.Tensor) -> tf.Tensor:
    """Losses with one more step appended."""
    return tf.concat([losses, tf.reshape(loss, [1])], axis=0)
