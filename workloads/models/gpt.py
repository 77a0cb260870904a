"""GPT: a decoder that predicts the next token at each position."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from workloads.data.arrays import endless, zipf_ids
from workloads.data.files import data_files
from workloads.data.text import byte_ids, rows_of
from workloads.flops import dense_flops
from workloads.models.layers import (
    TransformerLayer,
    cross_entropy,
    embedding_table,
    look_up,
    require_sequence,
)
from workloads.optimizers import Training
from workloads.protocol import TrainStep

if TYPE_CHECKING:
    import tensorflow as tf

_DATA_SEED = 20_240_303


@dataclass(kw_only=True, slots=True)
class Gpt:
    """Causal transformer whose token table is also its last layer, as in GPT-2.

    Args:
        batch_size: global examples per step.
        vocabulary: number of tokens.
        positions: length of the longest supported sequence.
        sequence: tokens per example.
        layers: number of decoder layers.
        width: length of a token's vector.
        heads: attention heads per layer.
        dropout: dropout rate, the same everywhere.
        examples: size of the data set.
        data: path of a text; its bytes give at most `examples` examples. None generates synthetic examples.
        data_sha256: checksum that the data must have, see `data_files`; None skips the check.
    Source:
        Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3.
    """

    name: str
    training: Training
    batch_size: int
    vocabulary: int
    positions: int
    sequence: int
    layers: int
    width: int
    heads: int
    dropout: float
    examples: int
    data: str | None = None
    data_sha256: str | None = None
    flops_per_example: float | None = field(init=False)

    def __post_init__(self) -> None:
        require_sequence(self.sequence, positions=self.positions)
        self.flops_per_example = self.layers * self._layer().flops(self.sequence) + dense_flops(
            self.width, self.vocabulary, positions=self.sequence
        )

    def train_step(self) -> TrainStep:
        import keras
        import tensorflow as tf

        layers = keras.layers
        words = embedding_table(self.vocabulary, self.width, name="words")
        places = embedding_table(self.positions, self.width, name="places")
        embedded = keras.Input([self.sequence, self.width])
        vectors = layers.Dropout(self.dropout, name="embedding_dropout")(embedded)
        for number in range(self.layers):
            vectors = self._layer().apply(vectors, name=f"layer_{number}")
        vectors = layers.LayerNormalization(epsilon=1e-5, name="norm")(vectors)
        decoder = keras.Model(embedded, vectors, name="decoder")

        def logits(tokens: tf.Tensor) -> tf.Tensor:
            hidden = decoder(look_up(words, tokens) + places.value[: self.sequence], training=True)
            # As one matrix: otherwise the table's gradient would be computed per example and then summed.
            flat = tf.matmul(tf.reshape(hidden, [-1, self.width]), words.value, transpose_b=True)
            return tf.reshape(flat, [-1, self.sequence, self.vocabulary])

        return self.training.step(cross_entropy(logits), [words, places, *decoder.trainable_variables])

    def dataset(self, seed: int) -> "tf.data.Dataset":
        """Return (tokens [sequence] int32, their successors), endless, in a new order each epoch.

        Raises:
            WorkloadError: the data is missing or does not match the parameters.
        """
        length = self.sequence + 1
        if self.data is None:
            rng = np.random.default_rng(_DATA_SEED)
            tokens = zipf_ids(rng, self.vocabulary, size=(self.examples, length))
        else:
            ids = byte_ids(data_files(self.data, self.data_sha256), vocabulary=self.vocabulary)
            tokens = rows_of(ids, length, most=self.examples, field="sequence")
        return endless(tokens[:, :-1], tokens[:, 1:], seed=seed)

    def _layer(self) -> TransformerLayer:
        return TransformerLayer(
            width=self.width,
            heads=self.heads,
            hidden=4 * self.width,
            dropout=self.dropout,
            norm="before",
            causal=True,
        )
