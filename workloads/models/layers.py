"""Parts that shipped models share: tables of vectors, projected LSTM cells, and mean losses.

Losses are taken in float32 whatever type a model computes in.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


def embedding_table(n_rows: int, width: int, *, name: str) -> "keras.Variable":
    """Return a trainable table [n_rows, width] with small uniform values."""
    import keras

    layer = keras.layers.Embedding(n_rows, width, name=name)
    layer.build()
    return layer.embeddings


def look_up(table: "keras.Variable", ids: "tf.Tensor") -> "tf.Tensor":
    """Return the rows of ids [...] as vectors [..., width].

    Called as a layer, Keras reads the whole table before it looks rows up; from the variable itself
    TensorFlow gathers single rows, which is what makes a remote table cheap.
    """
    import tensorflow as tf

    return tf.nn.embedding_lookup(table.value, ids)


def projected_lstm(units: int, width: int, *, name: str) -> "keras.layers.RNN":
    """Return a layer over [batch, steps, features] that gives [batch, steps, width].

    Args:
        units: of the cell's state.
        width: of its output.
        name: of the layer.
    Source:
        Sak et al. 2014, arXiv:1402.1128, section 2.2, without peepholes and without a second projection.
    """
    import keras

    # Keras has no types.
    class Cell(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(name="cell")
            self.state_size = [width, units]
            self.output_size = width

        def build(self, shape: tuple[int, ...]) -> None:
            self.kernel = self.add_weight((shape[-1] + width, 4 * units), "glorot_uniform", name="kernel")
            self.bias = self.add_weight((4 * units,), "zeros", name="bias")
            self.projection = self.add_weight((units, width), "glorot_uniform", name="projection")
            self.built = True

        def call(
            self, inputs: keras.KerasTensor, states: list[keras.KerasTensor]
        ) -> tuple[keras.KerasTensor, list[keras.KerasTensor]]:
            ops = keras.ops
            output, state = states
            gates = ops.matmul(ops.concatenate([inputs, output], axis=1), self.kernel) + self.bias
            admit, keep, candidate, show = ops.split(gates, 4, axis=1)
            # What is kept at first is nearly all, as the paper's offset of one.
            state = ops.sigmoid(keep + 1.0) * state + ops.sigmoid(admit) * ops.tanh(candidate)
            output = ops.matmul(ops.sigmoid(show) * ops.tanh(state), self.projection)
            return output, [output, state]

    return keras.layers.RNN(Cell(), return_sequences=True, name=name)


Loss: TypeAlias = "Callable[[tuple[Any, tf.Tensor]], tf.Tensor]"
Model: TypeAlias = "Callable[[Any], tf.Tensor]"


def cross_entropy(logits: Model) -> Loss:
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


def binary_cross_entropy(logit: Model) -> Loss:
    """Return the cross entropy between one logit [batch] and a label 0 or 1 [batch], averaged."""
    import tensorflow as tf

    def loss(batch: tuple[Any, tf.Tensor]) -> tf.Tensor:
        inputs, labels = batch
        wide = tf.cast(logit(inputs), tf.float32)
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, wide))

    return loss
