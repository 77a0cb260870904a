"""Clocks of workers, and mailboxes that wake a waiting worker."""

import tensorflow as tf


def count_step(clocks: tf.Tensor, *, task: int, staleness: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Count a step that a worker has completed.

    A worker may start its next step if the slowest has completed all but `staleness` of its own steps. All
    workers that wait are one step ahead of that, and wait for the same event: the slowest worker's next tick.

    Args:
        clocks: completed steps of each worker, int64 [n].
        task: worker that ticks.
    Returns:
        Clocks after the tick, number of workers that may go on because of it, and 1 if this worker must wait.
    """
    after = clocks + tf.one_hot(task, clocks.shape[0], dtype=clocks.dtype)
    slowest, slowest_after = tf.reduce_min(clocks), tf.reduce_min(after)
    n_waiting = tf.math.count_nonzero(clocks > slowest + staleness, dtype=tf.int32)
    n_released = tf.where(slowest_after > slowest, n_waiting, 0)
    return after, n_released, tf.cast(after[task] > slowest_after + staleness, tf.int32)


def register_wait(
    began: tf.Tensor, n_updates: tf.Tensor, n_waiting: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Decide if a worker waits: it does unless an update is newer than its step's.

    Args:
        n_updates: number of updates so far. n_waiting: number of workers that wait for the next one, int64.
    Returns:
        Number of workers that wait, and 1 if this one does.
    """
    waits = tf.cast(n_updates <= began, tf.int32)
    return n_waiting + tf.cast(waits, n_waiting.dtype), waits


def register(waiting: tf.Tensor, mailbox: tf.Tensor, waits: tf.Tensor) -> tf.Operation:
    """Put the handle of a worker's mailbox into the queue of those that wait, if it waits.

    Args:
        waiting: handle of a queue of handles. mailbox: handle of a queue of numbers.
        waits: 1 or 0.
    """
    handles = tf.reshape(mailbox, [1])[:waits]
    return tf.raw_ops.QueueEnqueueManyV2(handle=waiting, components=[handles])


def wake(waiting: tf.Tensor, n: tf.Tensor, number: tf.Tensor) -> tf.Operation:
    """Put a number into the mailboxes of the workers that have waited longest.

    Args:
        waiting: handle of a queue of mailboxes' handles. n: number of workers.
    """

    def one(turn: tf.Tensor) -> tf.Tensor:
        (mailbox,) = tf.raw_ops.QueueDequeueV2(handle=waiting, component_types=[tf.resource])
        with tf.control_dependencies([tf.raw_ops.QueueEnqueueV2(handle=mailbox, components=[number])]):
            return turn + 1

    n = tf.cast(n, tf.int32)
    loop = tf.while_loop(lambda turn: turn < n, one, [tf.constant(0)], parallel_iterations=1)
    return tf.group(loop)
