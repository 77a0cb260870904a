"""Language models of LSTM cells: a small one of words, and the one of the One Billion Word benchmark."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np

from workloads.data.arrays import endless, zipf_ids
from workloads.data.files import data_files, read_text
from workloads.data.text import rows_of, word_ids, words_of
from workloads.flops import dense_flops, lstm_flops
from workloads.models.layers import cross_entropy, embedding_table, look_up, projected_lstm
from workloads.optimizers import Training
from workloads.protocol import TrainStep, WorkloadError

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


# A softmax over thousands of words makes each gradient small: plain SGD needs larger steps than for digits.
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
        batch_size: global examples per step.
        vocabulary: number of word ids: the most frequent words, and one id for all others.
        sequence_length: words per example.
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
        WorkloadError: this Python was installed without the help texts.
    """
    try:
        topics: dict[str, str] = import_module("pydoc_data.topics").topics
    except ImportError:
        message = (
            "word-lm needs Python's help texts, module pydoc_data.topics; install the full standard library"
        )
        raise WorkloadError(message, field="name") from None
    return [word for _, text in sorted(topics.items()) for word in words_of(text)]


_DATA_SEED = 20_240_306
_DRAW_SEED = 20_240_307


@dataclass(kw_only=True, slots=True)
class Lm1b:
    """Embedding, an LSTM with projection, and a softmax over words sampled anew in each step.

    Args:
        batch_size: global examples per step.
        vocabulary: number of words; lower ids are more frequent.
        width: length of a word's vector, before and after the LSTM.
        units: size of the LSTM's state.
        steps: words per example.
        sampled: words that the softmax samples per step in addition to the labels; fewer than `vocabulary`.
        dropout: dropout rate before and after the LSTM.
        examples: size of the data set.
        data: path of a text; its words give at most `examples` examples. None generates synthetic examples.
        data_sha256: checksum that the data must have, see `data_files`; None skips the check.
    Source:
        Jozefowicz et al. 2016, arXiv:1602.02410, sections 3.1 and 4.2 (LSTM-2048-512).
    """

    name: str
    training: Training
    batch_size: int
    vocabulary: int
    width: int
    units: int
    steps: int
    sampled: int
    dropout: float
    examples: int
    data: str | None = None
    data_sha256: str | None = None
    flops_per_example: float | None = field(init=False)

    def __post_init__(self) -> None:
        if not self.sampled < self.vocabulary:
            message = (
                f"sampled must be below vocabulary={self.vocabulary}, got {self.sampled}; draw fewer words"
            )
            raise WorkloadError(message, field="sampled")
        # For each example, one product with the sampled words' vectors and one with the label's vector.
        self.flops_per_example = (
            dense_flops(2 * self.width, 4 * self.units, positions=self.steps)
            + dense_flops(self.units, self.width, positions=self.steps)
            + dense_flops(self.width, self.sampled + 1, positions=self.steps)
        )

    def train_step(self) -> TrainStep:
        import keras
        import tensorflow as tf

        table = embedding_table(self.vocabulary, self.width, name="words")
        softmax = embedding_table(self.vocabulary, self.width, name="softmax")
        offsets = keras.Variable(np.zeros(self.vocabulary, np.float32), name="softmax_offsets")
        draws = keras.random.SeedGenerator(_DRAW_SEED)
        body = keras.Sequential(
            [
                keras.Input([self.steps, self.width]),
                keras.layers.Dropout(self.dropout, name="before"),
                projected_lstm(self.units, self.width, name="lstm"),
                keras.layers.Dropout(self.dropout, name="after"),
            ],
            name="lm1b",
        )

        def loss(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            words, following = batch
            hidden = tf.reshape(body(look_up(table, words), training=True), [-1, self.width])
            return tf.reduce_mean(
                tf.nn.sampled_softmax_loss(
                    weights=softmax.value,
                    biases=offsets.value,
                    labels=tf.reshape(following, [-1, 1]),
                    inputs=hidden,
                    num_sampled=self.sampled,
                    num_classes=self.vocabulary,
                    sampled_values=log_uniform_words(following, self.sampled, self.vocabulary, draws),
                )
            )

        return self.training.step(loss, [table, softmax, offsets, *body.trainable_variables])

    def dataset(self, seed: int) -> "tf.data.Dataset":
        """Return (words [steps] int32, their successors int64), endless, in a new order each epoch.

        Raises:
            WorkloadError: the data is missing or does not match the parameters.
        """
        length = self.steps + 1
        if self.data is None:
            rng = np.random.default_rng(_DATA_SEED)
            words = zipf_ids(rng, self.vocabulary, size=(self.examples, length))
        else:
            files = data_files(self.data, self.data_sha256)
            text = [word for path in files for word in words_of(read_text(path))]
            ids = word_ids(text, vocabulary=self.vocabulary)
            words = rows_of(ids, length, most=self.examples, field="steps")
        return endless(words[:, :-1], words[:, 1:].astype(np.int64), seed=seed)


def log_uniform_words(
    words: "tf.Tensor", n: int, vocabulary: int, draws: "keras.random.SeedGenerator"
) -> "tuple[tf.Tensor, tf.Tensor, tf.Tensor]":
    """Draw distinct words without replacement, word k in proportion to log((k + 2) / (k + 1)).

    The n words that arrive first, if word k arrives after an exponential time with that rate, have the
    distribution of TensorFlow's own sampler. TensorFlow's sampler keeps its state inside the operation, so
    that all replicas of a TensorFlow strategy would draw alike; the state of a Keras seed generator is a
    variable.

    Args:
        words: label words, integers of any shape.
        n: number of words to draw, less than `vocabulary`.
        draws: source of the random numbers.
    Returns:
        Argument `sampled_values` of `tf.nn.sampled_softmax_loss`: words [n] int64, and the probability of
        each label word [size of words, 1] and each drawn word [n] to arrive before the first word that was
        not drawn.
    Source:
        Efraimidis and Spirakis 2006, Weighted random sampling with a reservoir, for the race; Duffield, Lund
        and Thorup 2007, Priority sampling, for probabilities given the first that was not drawn.
    """
    import keras
    import tensorflow as tf

    rates = tf.math.log1p(1.0 / tf.range(1.0, vocabulary + 1.0)) / math.log(vocabulary + 1)
    # A uniform number of 0 never arrives.
    arrivals = -tf.math.log(keras.random.uniform([vocabulary], seed=draws)) / rates
    earliest, drawn = tf.math.top_k(-arrivals, n + 1)
    until = -earliest[n]

    def arrived(ids: tf.Tensor) -> tf.Tensor:
        return -tf.math.expm1(-until * tf.gather(rates, ids))

    drawn = tf.cast(drawn[:n], tf.int64)
    return drawn, arrived(tf.reshape(words, [-1, 1])), arrived(drawn)
