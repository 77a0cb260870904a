"""Parts that shipped models share: tables of vectors, transformer layers, LSTM cells, and mean losses.

Losses are computed in float32, whatever type the model computes in.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from workloads.flops import attention_flops, dense_flops
from workloads.protocol import WorkloadError

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
    """Return an LSTM layer with a projected output: [batch, steps, features] → [batch, steps, width].

    Args:
        units: size of the cell state.
        width: size of the output.
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
            # Initially nearly all state is kept, as with the paper's offset of one.
            state = ops.sigmoid(keep + 1.0) * state + ops.sigmoid(admit) * ops.tanh(candidate)
            output = ops.matmul(ops.sigmoid(show) * ops.tanh(state), self.projection)
            return output, [output, state]

    return keras.layers.RNN(Cell(), return_sequences=True, name=name)


Loss: TypeAlias = "Callable[[tuple[Any, tf.Tensor]], tf.Tensor]"
Model: TypeAlias = "Callable[[Any], tf.Tensor]"


def cross_entropy(logits: Model) -> Loss:
    """Return the cross entropy between logits and labels, averaged over all labels of the batch.

    Args:
        logits: inputs [batch, ...] → unnormalised log probabilities [batch, ..., classes]. Every example has
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


_DEVIATION = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerLayer:
    """Self-attention and two dense layers, each with dropout, a residual connection and a normalisation.

    Args:
        width: length of a token's vector.
        heads: number of attention heads; divides `width`.
        hidden: units of the inner dense layer.
        dropout: dropout rate of the attention weights and of the output of both halves.
        norm: position of the normalisation: `after` the residual connection, or `before` both halves.
        causal: True if a token attends only to itself and earlier tokens.
    Source:
        Vaswani et al. 2017, arXiv:1706.03762, section 3; normalised before: Radford et al. 2019, section 2.3.
    """

    width: int
    heads: int
    hidden: int
    dropout: float
    norm: Literal["after", "before"]
    causal: bool

    def __post_init__(self) -> None:
        if self.width % self.heads:
            message = f"heads must divide width={self.width}, got {self.heads}; give another number of either"
            raise WorkloadError(message, field="heads")

    def flops(self, sequence: int) -> float:
        """Return forward and backward operations for a sequence of `sequence` tokens."""
        return (
            4 * dense_flops(self.width, self.width, positions=sequence)
            + 2 * dense_flops(self.width, self.hidden, positions=sequence)
            + attention_flops(self.width, sequence=sequence)
        )

    def apply(
        self, tokens: "keras.KerasTensor", *, name: str, mask: "keras.KerasTensor | None" = None
    ) -> "keras.KerasTensor":
        """Return tokens [batch, sequence, width] after this layer.

        Args:
            tokens: [batch, sequence, width].
            name: prefix of the Keras layers' names.
            mask: [batch, 1, sequence] bool, True for tokens that may be attended to; None for all tokens.
        """
        import keras

        layers = keras.layers
        attention = layers.MultiHeadAttention(
            self.heads,
            self.width // self.heads,
            dropout=self.dropout,
            kernel_initializer=initializer(),
            name=f"{name}_attention",
        )
        norms = [layers.LayerNormalization(epsilon=1e-5, name=f"{name}_norm_{half}") for half in range(2)]
        dropouts = [layers.Dropout(self.dropout, name=f"{name}_dropout_{half}") for half in range(2)]
        dense = [
            layers.Dense(self.hidden, "gelu", kernel_initializer=initializer(), name=f"{name}_dense_0"),
            layers.Dense(self.width, kernel_initializer=initializer(), name=f"{name}_dense_1"),
        ]

        def attend(tensor: keras.KerasTensor) -> keras.KerasTensor:
            return attention(tensor, tensor, attention_mask=mask, use_causal_mask=self.causal)

        def feed_forward(tensor: keras.KerasTensor) -> keras.KerasTensor:
            return dense[1](dense[0](tensor))

        for half, norm, dropout in zip((attend, feed_forward), norms, dropouts, strict=True):
            if self.norm == "before":
                tokens = layers.add([tokens, dropout(half(norm(tokens)))])
            else:
                tokens = norm(layers.add([tokens, dropout(half(tokens))]))
        return tokens


def require_sequence(sequence: int, *, positions: int) -> None:
    """Refuse examples longer than the model's position table.

    Raises:
        WorkloadError: `sequence` exceeds `positions`.
    """
    if sequence > positions:
        message = f"sequence must be at most positions={positions}, got {sequence}; lower it, or raise those"
        raise WorkloadError(message, field="sequence")


def initializer() -> "keras.initializers.Initializer":
    """Return the weight initialiser of BERT and GPT."""
    import keras

    return keras.initializers.TruncatedNormal(stddev=_DEVIATION)
