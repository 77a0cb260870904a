"""Models as people bring them: of `keras.applications` at small inputs, and small language models."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from model import Model

from workloads import TrainStep

N_STEPS = 2
BATCH_SIZE = 16
N_CLASSES = 10
VOCABULARY, LENGTH, WIDTH, HEADS = 50, 12, 16, 2
# Name → least side of an image; each takes one of 32 unless its layers need more.
APPLICATIONS: Mapping[str, int] = {
    "MobileNet": 32,
    "MobileNetV2": 64,
    "MobileNetV3Small": 32,
    "EfficientNetB0": 32,
    "EfficientNetV2B0": 32,
    "DenseNet121": 32,
    "NASNetMobile": 32,
    "ResNet50V2": 32,
    "VGG16": 32,
    "Xception": 71,
}


def application(name: str) -> Model:
    """A classifier of `keras.applications` with random weights."""
    side = APPLICATIONS[name]
    settings: dict[str, Any] = {"weights": None, "classes": N_CLASSES, "input_shape": (side, side, 3)}
    model = getattr(keras.applications, name)(**settings)
    random = np.random.default_rng(0)
    fed = [
        [
            random.uniform(-1, 1, (BATCH_SIZE, side, side, 3)).astype(np.float32),
            random.integers(0, N_CLASSES, BATCH_SIZE).astype(np.int32),
        ]
        for _ in range(N_STEPS)
    ]
    optimizer = keras.optimizers.SGD(1e-2, momentum=0.9)
    optimizer.build(model.trainable_variables)
    entropy = keras.losses.SparseCategoricalCrossentropy()

    def loss(batch: Any) -> tf.Tensor:
        images, labels = batch
        return entropy(labels, model(images, training=True))

    return Model(
        step=TrainStep(loss=loss, variables=model.trainable_variables, optimizer=optimizer),
        spec=(tf.TensorSpec((side, side, 3), tf.float32), tf.TensorSpec((), tf.int32)),
        batches=fed,
    )


class Block(keras.layers.Layer):
    """A transformer block: attention and two dense layers, each normalised before and added after."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        layers = keras.layers
        self.causal = causal
        self.norms = [layers.LayerNormalization(), layers.LayerNormalization()]
        self.attention = layers.MultiHeadAttention(HEADS, WIDTH // HEADS, dropout=0.1)
        self.dense = [layers.Dense(2 * WIDTH, "gelu"), layers.Dense(WIDTH)]

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        normed = self.norms[0](x)
        x += self.attention(normed, normed, use_causal_mask=self.causal, training=training)
        return x + self.dense[1](self.dense[0](self.norms[1](x)))


def transformer(*, causal: bool, tied: bool) -> tuple[keras.Model, Callable[[tf.Tensor], tf.Tensor]]:
    layers = keras.layers
    table = layers.Embedding(VOCABULARY, WIDTH, name="tokens")
    places = layers.Embedding(LENGTH, WIDTH, name="places")
    words = keras.Input((LENGTH,), dtype="int32")
    x = table(words) + places(tf.range(LENGTH))
    for _ in range(2):
        x = Block(causal=causal)(x)
    x = layers.LayerNormalization()(x)
    body = keras.Model(words, x if tied else layers.Dense(VOCABULARY, name="head")(x))

    def logits(tensor: tf.Tensor) -> tf.Tensor:
        out = body(tensor, training=True)
        return tf.matmul(out, table.embeddings.value, transpose_b=True) if tied else out

    return body, logits


def recurrent(cell: Any) -> tuple[keras.Model, Callable[[tf.Tensor], tf.Tensor]]:
    layers = keras.layers
    words = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(VOCABULARY, WIDTH)(words)
    x = layers.Bidirectional(cell(WIDTH, return_sequences=True))(x)
    x = cell(WIDTH, return_sequences=True, dropout=0.1)(x)
    body = keras.Model(words, layers.Dense(VOCABULARY)(x))
    return body, lambda tensor: body(tensor, training=True)


def language(make: Callable[[], tuple[keras.Model, Callable[[tf.Tensor], tf.Tensor]]]) -> Model:
    """A model that guesses the word of each place."""
    body, logits = make()
    optimizer = keras.optimizers.AdamW(1e-3, global_clipnorm=1.0)
    optimizer.build(body.trainable_variables)

    def loss(batch: Any) -> tf.Tensor:
        words, wanted = batch
        cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(wanted, logits(words))
        return tf.reduce_mean(cross_entropy)

    random = np.random.default_rng(0)
    fed = [
        [random.integers(0, VOCABULARY, (BATCH_SIZE, LENGTH)).astype(np.int32) for _ in range(2)]
        for _ in range(N_STEPS)
    ]
    spec = tf.TensorSpec((LENGTH,), tf.int32)
    return Model(
        step=TrainStep(loss=loss, variables=body.trainable_variables, optimizer=optimizer),
        spec=(spec, spec),
        batches=fed,
    )


LANGUAGE: Mapping[str, Callable[[], Model]] = {
    "bert-like": partial(language, partial(transformer, causal=False, tied=True)),
    "gpt-like": partial(language, partial(transformer, causal=True, tied=False)),
    "lstm-language": partial(language, partial(recurrent, keras.layers.LSTM)),
    "gru-language": partial(language, partial(recurrent, keras.layers.GRU)),
}
REAL: Mapping[str, Callable[[], Model]] = {
    **{name: partial(application, name) for name in APPLICATIONS},
    **LANGUAGE,
}
