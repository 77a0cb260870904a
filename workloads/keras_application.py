"""A model of `keras.applications` with random weights, on synthetic images."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from workloads.classification import classification_step
from workloads.data import endless
from workloads.errors import WorkloadError
from workloads.protocol import TrainStep
from workloads.suggestion import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable

    import keras
    import tensorflow as tf

PREFIX = "keras:"
_DATA_SEED = 20_240_301
_CHANNELS = 3


@dataclass(kw_only=True, slots=True)
class KerasApplication:
    """An image classifier that Keras ships, trained from random weights.

    Args:
        model: its name in `keras.applications`.
        batch_size: global examples per step.
        input: height and width of an image; each model has a smallest of its own.
        classes: number of labels.
        examples: size of the data set.
        optimizer: a name of `workloads.optimizers.OPTIMIZERS`.
        learning_rate: None takes the default of the optimizer.
        clip_global_norm: None clips nothing.
    """

    model: str
    batch_size: int
    input: int
    classes: int
    examples: int
    optimizer: str
    learning_rate: float | None
    clip_global_norm: float | None
    flops_per_example: float | None = None

    @property
    def name(self) -> str:
        """As references name it."""
        return f"{PREFIX}{self.model}"

    def train_step(self) -> TrainStep:
        """Create the model and its optimizer.

        Raises:
            WorkloadError: Keras has no model of this name.
        """
        model = _builder(self.model)(
            weights=None,
            input_shape=(self.input, self.input, _CHANNELS),
            classes=self.classes,
            classifier_activation=None,
        )
        return classification_step(
            partial(model, training=True),
            model.trainable_variables,
            optimizer=self.optimizer,
            learning_rate=self.learning_rate,
            clip_global_norm=self.clip_global_norm,
        )

    def dataset(self, seed: int) -> "tf.data.Dataset":
        """Return (image [input, input, 3] float32, label [] int32), endless, in a new order each epoch."""
        rng = np.random.default_rng(_DATA_SEED)
        colours = rng.normal(size=(self.classes, 1, 1, _CHANNELS))
        labels = rng.integers(self.classes, size=self.examples)
        noise = rng.normal(size=(self.examples, self.input, self.input, _CHANNELS))
        return endless((colours[labels] + noise).astype(np.float32), labels.astype(np.int32), seed=seed)


def _builder(name: str) -> "Callable[..., keras.Model]":
    import keras

    known = {
        key: maker for key, maker in vars(keras.applications).items() if key[0].isupper() and callable(maker)
    }
    if name not in known:
        raise WorkloadError(
            f"keras.applications has no model {name!r}{did_you_mean(name, known)}", field="name"
        )
    builder: Callable[..., keras.Model] = known[name]
    return builder
