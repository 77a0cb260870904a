"""A word-level language model over English prose, whose embedding has sparse gradients."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from workloads.data.arrays import endless
from workloads.data.text import word_ids, words_of
from workloads.errors import WorkloadError
from workloads.flops import dense_flops, lstm_flops
from workloads.models.embedding import embedding_table, look_up
from workloads.models.losses import cross_entropy
from workloads.optimizers import Training
from workloads.protocol import TrainStep

if TYPE_CHECKING:
    import tensorflow as tf

# A softmax over thousands of words spreads each gradient thin: plain steps must be longer than for digits.
_LEARNING_RATES: Mapping[str, float] = {
    "sgd": 4.0,
    "momentum": 0.4,
    "adam": 0.005,
    "adamw": 0.005,
    "adagrad": 0.2,
    "rmsprop": 0.003,
}


@dataclass(kw_only=True, slots=True)
class WordLm:
    """Embedding, LSTM and a dense softmax that predict the next word of Python's own help texts.

    Args:
        name: as references name it.
        training: optimizer and clipping.
        batch_size: global examples per step.
        vocabulary: most frequent words kept, the place of all others included.
        sequence_length: words in an example.
        embedding: length of a word's vector.
        units: width of the LSTM.
    """

    name: str
    training: Training
    batch_size: int
    vocabulary: int
    sequence_length: int
    embedding: int
    units: int
    flops_per_example: float | None = field(init=False)

    def __post_init__(self) -> None:
        # The look-up moves rows and multiplies nothing.
        self.flops_per_example = lstm_flops(
            self.embedding, self.units, steps=self.sequence_length
        ) + dense_flops(self.units, self.vocabulary, positions=self.sequence_length)

    def train_step(self) -> TrainStep:
        """Create the model and its optimizer."""
        import keras
        import tensorflow as tf

        table = embedding_table(self.vocabulary, self.embedding, name="embedding")
        model = keras.Sequential(
            [
                keras.Input([self.sequence_length, self.embedding]),
                keras.layers.LSTM(self.units, return_sequences=True, name="lstm"),
                keras.layers.Dense(self.vocabulary, name="logits"),
            ],
            name="word_lm",
        )

        def logits(words: tf.Tensor) -> tf.Tensor:
            return model(look_up(table, words), training=True)

        training = self.training
        if training.learning_rate is None:
            training = replace(training, learning_rate=_LEARNING_RATES[training.optimizer])
        return training.step(cross_entropy(logits), [table, *model.trainable_variables])

    def dataset(self, seed: int) -> "tf.data.Dataset":
        """Return (words [sequence_length] int32, their successors), endless, in a new order each epoch."""
        ids = word_ids(prose(), vocabulary=self.vocabulary)
        n_rows = (len(ids) - 1) // self.sequence_length
        if n_rows < 1:
            message = f"sequence_length must be below the text's {len(ids)} words, got {self.sequence_length}"
            raise WorkloadError(message, field="sequence_length")
        used = n_rows * self.sequence_length
        words = ids[:used].reshape(n_rows, self.sequence_length)
        following = ids[1 : used + 1].reshape(n_rows, self.sequence_length)
        return endless(words, following, seed=seed)


@cache
def prose() -> list[str]:
    """Return the words of Python's help texts in lower case, topic after topic.

    Raises:
        WorkloadError: when this Python was installed without them.
    """
    try:
        topics: dict[str, str] = import_module("pydoc_data.topics").topics
    except ImportError:
        message = (
            "word-lm needs Python's help texts, module pydoc_data.topics; install the full standard library"
        )
        raise WorkloadError(message, field="name") from None
    return [word for _, text in sorted(topics.items()) for word in words_of(text)]
