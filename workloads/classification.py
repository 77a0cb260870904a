"""The train step that the shipped workloads share: cross entropy between logits and labels."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from workloads.optimizers import build_optimizer
from workloads.protocol import TrainStep

if TYPE_CHECKING:
    import tensorflow as tf


def classification_step(
    logits: "Callable[[tf.Tensor], tf.Tensor]",
    variables: Sequence[Any],
    *,
    optimizer: str,
    learning_rate: float | None,
    clip_global_norm: float | None,
) -> TrainStep:
    """Make the step of a model that classifies.

    Args:
        logits: inputs [batch, …] -> unnormalised log probabilities [batch, …, classes]. Examples are equally
            large, so that the mean over all labels is the mean over examples.
        variables: trainable ones.
        optimizer: a name of `workloads.optimizers`, with its learning rate, None for its default.
    """
    import tensorflow as tf

    def loss(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        inputs, labels = batch
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits(inputs)))

    return TrainStep(
        loss=loss,
        variables=variables,
        optimizer=build_optimizer(optimizer, learning_rate=learning_rate, variables=variables),
        clip_global_norm=clip_global_norm,
    )
