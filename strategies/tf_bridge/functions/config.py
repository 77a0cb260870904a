"""Settings by which TensorFlow runs a function that a node calls."""

from functools import cache

import tensorflow as tf


@cache
def as_written() -> bytes:
    """The settings, serialized, of a function whose nodes run as they are, without TensorFlow's optimizers.

    These would go over every function anew before its first call, for longer than many steps take.
    """
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return bytes(config.SerializeToString(deterministic=True))
