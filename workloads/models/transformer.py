"""The transformer layer that BERT and GPT share, and its arithmetic."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from workloads.flops import attention_flops, dense_flops
from workloads.protocol import WorkloadError

if TYPE_CHECKING:
    import keras

_DEVIATION = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerLayer:
    """Self-attention and two dense layers, each with dropout, a shortcut and a normalisation.

    Args:
        width: length of a token's vector.
        heads: of the attention; divides `width`.
        hidden: units between the two dense layers.
        dropout: share of what attention weights and either half give that is dropped.
        norm: `after` adding the shortcut, or `before` either half.
        causal: whether a token sees itself and those before it only.
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
        """Return forward and backward operations for a sequence of so many tokens."""
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
            name: prefix of the names of its layers.
            mask: [batch, 1, sequence] bool, true where a token may be looked at; None for everywhere.
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

        def attend(given: keras.KerasTensor) -> keras.KerasTensor:
            return attention(given, given, attention_mask=mask, use_causal_mask=self.causal)

        def feed_forward(given: keras.KerasTensor) -> keras.KerasTensor:
            return dense[1](dense[0](given))

        for half, norm, dropout in zip((attend, feed_forward), norms, dropouts, strict=True):
            if self.norm == "before":
                tokens = layers.add([tokens, dropout(half(norm(tokens)))])
            else:
                tokens = norm(layers.add([tokens, dropout(half(tokens))]))
        return tokens


def require_sequence(sequence: int, *, positions: int) -> None:
    """Refuse examples that are longer than a model has vectors of places for.

    Raises:
        WorkloadError: they are.
    """
    if sequence > positions:
        message = f"sequence must be at most positions={positions}, got {sequence}; lower it, or raise those"
        raise WorkloadError(message, field="sequence")


def initializer() -> "keras.initializers.Initializer":
    """Return what BERT and GPT draw their weights from."""
    import keras

    return keras.initializers.TruncatedNormal(stddev=_DEVIATION)
