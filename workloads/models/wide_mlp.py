"""A communication-bound perceptron: many parameters, few examples per step, synthetic data."""

from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from workloads.data.arrays import endless
from workloads.flops import dense_flops
from workloads.models.losses import cross_entropy
from workloads.optimizers import Training
from workloads.protocol import TrainStep

if TYPE_CHECKING:
    import tensorflow as tf

_DATA_SEED = 20_240_229
# Clusters overlap a little, so that the loss stays above zero.
_SPREAD = 0.5


@dataclass(kw_only=True, slots=True)
class WideMlp:
    """Square hidden layers over Gaussian clusters, one cluster per class.

    With its defaults it has 17.6 MB of float32 parameters for 16 examples, so that two workers move more
    than a millisecond's worth of gradients per example.

    Args:
        name: as references name it.
        training: optimizer and clipping.
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
        """Create the model and its optimizer."""
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
        rng = np.random.default_rng(_DATA_SEED)
        centres = _SPREAD * rng.normal(size=(self.classes, self.features))
        labels = rng.integers(self.classes, size=self.examples)
        noise = rng.normal(size=(self.examples, self.features))
        return endless((centres[labels] + noise).astype(np.float32), labels.astype(np.int32), seed=seed)
