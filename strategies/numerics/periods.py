"""Gates that open in some steps."""

import tensorflow as tf


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
