"""BERT's pre-training: masked words and whether one sentence follows the other."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from workloads.data.arrays import endless, zipf_ids
from workloads.data.files import data_files, one_file
from workloads.data.text import WordPieces, masked_pairs, sentences_of
from workloads.flops import dense_flops
from workloads.models.layers import TransformerLayer, embedding_table, initializer, look_up, require_sequence
from workloads.optimizers import Training
from workloads.protocol import TrainStep, WorkloadError

if TYPE_CHECKING:
    import tensorflow as tf

Array = npt.NDArray[np.generic]
_DATA_SEED = 20_240_302
_SENTENCES = 2
_MASK = 0


@dataclass(kw_only=True, slots=True)
class Bert:
    """Encoder with its two pre-training heads; the masked-word head reuses the word table.

    Args:
        batch_size: global examples per step.
        vocabulary: word pieces.
        positions: length of the longest supported sequence.
        sequence: tokens of an example, both sentences together.
        predictions: masked tokens of an example.
        layers: number of encoder layers.
        width: length of a token's vector.
        heads: attention heads per layer.
        hidden: units of the inner dense layer of each encoder layer.
        dropout: dropout rate, the same everywhere.
        examples: size of the data set.
        data: path of a text with one sentence per line; None generates synthetic examples.
        pieces: path of a vocabulary with one piece per line; None derives it from the text.
        data_sha256: checksum that the data must have, see `data_files`; None skips the check.
    Source:
        Devlin et al. 2018, arXiv:1810.04805, sections 3.1 and A.2.
    """

    name: str
    training: Training
    batch_size: int
    vocabulary: int
    positions: int
    sequence: int
    predictions: int
    layers: int
    width: int
    heads: int
    hidden: int
    dropout: float
    examples: int
    data: str | None = None
    data_sha256: str | None = None
    pieces: str | None = None
    flops_per_example: float | None = field(init=False)

    def __post_init__(self) -> None:
        require_sequence(self.sequence, positions=self.positions)
        if self.predictions > self.sequence:
            message = (
                f"predictions must be at most sequence={self.sequence}, the tokens to mask, got "
                f"{self.predictions}; lower it, or raise sequence"
            )
            raise WorkloadError(message, field="predictions")
        self.flops_per_example = (
            self.layers * self._layer().flops(self.sequence)
            + dense_flops(self.width, self.width, positions=self.predictions)
            + dense_flops(self.width, self.vocabulary, positions=self.predictions)
            + dense_flops(self.width, self.width)
            + dense_flops(self.width, _SENTENCES)
        )

    def train_step(self) -> TrainStep:
        import keras
        import tensorflow as tf

        layers = keras.layers
        words = embedding_table(self.vocabulary, self.width, name="words")
        places = embedding_table(self.positions, self.width, name="places")
        sentences = embedding_table(_SENTENCES, self.width, name="sentences")

        embedded = keras.Input([self.sequence, self.width])
        seen = keras.Input([1, self.sequence], dtype="bool")
        tokens = layers.LayerNormalization(epsilon=1e-12, name="embedding_norm")(embedded)
        tokens = layers.Dropout(self.dropout, name="embedding_dropout")(tokens)
        for number in range(self.layers):
            tokens = self._layer().apply(tokens, name=f"layer_{number}", mask=seen)
        pooled = layers.Dense(self.width, "tanh", kernel_initializer=initializer(), name="pooler")(
            tokens[:, 0]
        )
        follows = layers.Dense(_SENTENCES, kernel_initializer=initializer(), name="follows")(pooled)
        encoder = keras.Model([embedded, seen], [tokens, follows], name="encoder")

        masked = keras.Sequential(
            [
                keras.Input([self.width]),
                layers.Dense(self.width, "gelu", kernel_initializer=initializer(), name="transform"),
                layers.LayerNormalization(epsilon=1e-12, name="transform_norm"),
            ],
            name="masked",
        )
        offset = keras.Variable(np.zeros(self.vocabulary, np.float32), name="word_offset")

        def loss(batch: dict[str, tf.Tensor]) -> tf.Tensor:
            vectors = look_up(words, batch["tokens"]) + look_up(sentences, batch["sentences"])
            vectors += places.value[: self.sequence]
            mask = tf.sequence_mask(batch["length"], self.sequence)[:, tf.newaxis]
            out, which = encoder([vectors, mask], training=True)
            hidden = masked(tf.reshape(tf.gather(out, batch["masked"], batch_dims=1), [-1, self.width]))
            logits = tf.matmul(hidden, words.value, transpose_b=True) + offset.value
            wanted = tf.reshape(batch["words"], [-1])
            return tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(wanted, logits)
            ) + tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(batch["follows"], which))

        own = [words, places, sentences, offset]
        return self.training.step(loss, [*own, *encoder.trainable_variables, *masked.trainable_variables])

    def dataset(self, seed: int) -> "tf.data.Dataset":
        """Return an endless dataset of sentence pairs, in a new order each epoch.

        Each example is a dict: `tokens` and `sentences` (0 or 1) [sequence] int32, valid up
        to `length`; positions `masked` [predictions] int32 and the original `words` [predictions]
        int32 there; `follows` [] int32, 1 if the second sentence follows the first. In synthetic examples,
        words have Zipf's frequencies and lengths vary between half and all of `sequence`.

        Raises:
            WorkloadError: the data or the vocabulary is missing or does not match the parameters.
        """
        rng = np.random.default_rng(_DATA_SEED)
        columns = self._made_up(rng) if self.data is None else self._read(self.data, rng)
        keys = sorted(columns)
        rows = endless(*[columns[key].astype(np.int32) for key in keys], seed=seed)
        return rows.map(lambda *parts: dict(zip(keys, parts, strict=True)))

    def _read(self, data: str, rng: np.random.Generator) -> Mapping[str, Array]:
        sentences = sentences_of(data_files(data, self.data_sha256))
        if self.pieces is None:
            pieces = WordPieces.of_text(chain.from_iterable(sentences), self.vocabulary)
        else:
            pieces = WordPieces.of_file(one_file(self.pieces, field="pieces"), self.vocabulary)
        return masked_pairs(
            [pieces.ids(words) for words in sentences],
            pieces,
            rng,
            vocabulary=self.vocabulary,
            sequence=self.sequence,
            predictions=self.predictions,
            examples=self.examples,
        )

    def _made_up(self, rng: np.random.Generator) -> Mapping[str, Array]:
        shape = (self.examples, self.sequence)
        words = zipf_ids(rng, self.vocabulary - 1, size=shape) + 1
        shortest = max(self.predictions, self.sequence // 2)
        length = rng.integers(shortest, self.sequence, size=self.examples, endpoint=True)
        place = np.arange(self.sequence)
        is_token = place < length[:, np.newaxis]
        # The first positions of a random order of the valid ones.
        order = np.argsort(np.where(is_token, rng.random(shape), 2.0), axis=1)
        masked = np.sort(order[:, : self.predictions], axis=1)
        tokens = np.where(is_token, words, _MASK)
        np.put_along_axis(tokens, masked, _MASK, axis=1)
        return {
            "tokens": tokens,
            "sentences": is_token & (place >= length[:, np.newaxis] // 2),
            "length": length,
            "masked": masked,
            "words": np.take_along_axis(words, masked, axis=1),
            "follows": rng.integers(_SENTENCES, size=self.examples),
        }

    def _layer(self) -> TransformerLayer:
        return TransformerLayer(
            width=self.width,
            heads=self.heads,
            hidden=self.hidden,
            dropout=self.dropout,
            norm="after",
            causal=False,
        )
