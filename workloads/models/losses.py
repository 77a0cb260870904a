"""Mean losses over batches of (inputs, labels), as the shipped models are trained with.

They are taken in float32 whatever type a model computes in.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf

    Loss = Callable[[tuple[Any, tf.Tensor]], tf.Tensor]
    Model = Callable[[Any], tf.Tensor]


def cross_entropy(logits: "Model") -> "Loss":
    """Return the cross entropy between logits and labels, averaged over all labels of the batch.

    Args:
        logits: inputs [batch, ...] -> unnormalised log probabilities [batch, ..., classes]. Examples have
            equally many labels, so that the mean over labels is the mean over examples.
    """
    import tensorflow as tf

    def loss(batch: tuple[Any, tf.Tensor]) -> tf.Tensor:
        inputs, labels = batch
        wide = tf.cast(logits(inputs), tf.float32)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, wide))

    return loss


def binary_cross_entropy(logit: "Model") -> "Loss":
    """Return the cross entropy between one logit [batch] and a label 0 or 1 [batch], averaged."""
    import tensorflow as tf

    def loss(batch: tuple[Any, tf.Tensor]) -> tf.Tensor:
        inputs, labels = batch
        wide = tf.cast(logit(inputs), tf.float32)
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, wide))

    return loss
