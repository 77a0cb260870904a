"""Two models of synthetic features: linear regression, and a classifier of wide dense layers."""

from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from workloads.data.arrays import endless
from workloads.flops import dense_flops
from workloads.models.layers import cross_entropy
from workloads.optimizers import Training
from workloads.protocol import TrainStep

if TYPE_CHECKING:
    import tensorflow as tf


_DATA_SEED = 20_240_307
_NOISE = 0.1


@dataclass(kw_only=True, slots=True)
class LinearRegression:
    """Least squares with one weight per feature and an offset.

    Args:
        batch_size: global examples per step.
        features: length of an example.
        examples: size of the data set.
    """

    name: str
    training: Training
    batch_size: int
    features: int
    examples: int
    flops_per_example: float | None = field(init=False)

    def __post_init__(self) -> None:
        # No gradient of the input is needed.
        self.flops_per_example = 2 * dense_flops(self.features, 1) / 3

    def train_step(self) -> TrainStep:
        import keras
        import tensorflow as tf

        weights = keras.Variable(np.zeros((self.features, 1), np.float32), name="weights")
        offset = keras.Variable(np.zeros((), np.float32), name="offset")

        def loss(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            features, wanted = batch
            estimated = tf.matmul(features, weights.value)[:, 0] + offset.value
            return tf.reduce_mean(tf.square(estimated - wanted))

        return self.training.step(loss, [weights, offset])

    def dataset(self, seed: int) -> "tf.data.Dataset":
        """Return (features [features] float32, value [] float32), endless, in a new order each epoch."""
        rng = np.random.default_rng(_DATA_SEED)
        # Total variance 1 for any number of features: one learning rate serves all.
        features = rng.normal(size=(self.examples, self.features)) / np.sqrt(self.features)
        values = features @ rng.normal(size=self.features) + 2.0
        values += _NOISE * rng.normal(size=self.examples)
        return endless(features.astype(np.float32), values.astype(np.float32), seed=seed)


_CENTRES_SEED = 20_240_229
# Clusters overlap a little, so that the loss stays above zero.
_SPREAD = 0.5


@dataclass(kw_only=True, slots=True)
class WideMlp:
    """Square hidden layers over Gaussian clusters, one cluster per class.

    With its defaults it has 17.6 MB of float32 parameters for 16 examples, so that two workers move more
    than a millisecond's worth of gradients per example.

    Args:
        batch_size: global examples per step.
        units: width of each hidden layer.
        layers: hidden layers, at least 1.
        features: length of an example.
        classes: number of clusters.
        examples: size of the data set.
    """

    name: str
    training: Training
    batch_size: int
    units: int
    layers: int
    features: int
    classes: int
    examples: int
    flops_per_example: float | None = field(init=False)

    def __post_init__(self) -> None:
        widths = [self.features, *[self.units] * self.layers, self.classes]
        self.flops_per_example = sum(dense_flops(n_in, n_out) for n_in, n_out in pairwise(widths))

    def train_step(self) -> TrainStep:
        import keras

        hidden = [
            keras.layers.Dense(self.units, "relu", kernel_initializer="he_normal", name=f"hidden_{i}")
            for i in range(self.layers)
        ]
        model = keras.Sequential(
            [keras.Input([self.features]), *hidden, keras.layers.Dense(self.classes, name="logits")],
            name="wide_mlp",
        )

        return self.training.step(cross_entropy(partial(model, training=True)), model.trainable_variables)

    def dataset(self, seed: int) -> "tf.data.Dataset":
        """Return (features [features] float32, label [] int32), endless, in a new order each epoch."""
        rng = np.random.default_rng(_CENTRES_SEED)
        centres = _SPREAD * rng.normal(size=(self.classes, self.features))
        labels = rng.integers(self.classes, size=self.examples)
        noise = rng.normal(size=(self.examples, self.features))
        return endless((centres[labels] + noise).astype(np.float32), labels.astype(np.int32), seed=seed)
