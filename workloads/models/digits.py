"""Two classifiers of scikit-learn's handwritten digits: a dense one, and a small convolutional one."""

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from workloads.data.arrays import accuracy, digits, endless
from workloads.flops import dense_flops
from workloads.models.layers import cross_entropy
from workloads.optimizers import Training
from workloads.protocol import TrainStep

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


_PIXELS = 64
_CLASSES = 10


@dataclass(kw_only=True, slots=True)
class DigitsMlp:
    """Two hidden layers over scikit-learn's 1,797 digits of 8 x 8 pixels.

    Args:
        batch_size: global examples per step.
        units: width of the first hidden layer; the second is as wide.
    """

    name: str
    training: Training
    batch_size: int
    units: int
    flops_per_example: float | None = field(init=False)
    _model: "keras.Model | None" = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.flops_per_example = (
            dense_flops(_PIXELS, self.units)
            + dense_flops(self.units, self.units)
            + dense_flops(self.units, _CLASSES)
        )

    def train_step(self) -> TrainStep:
        import keras

        model = keras.Sequential(
            [
                keras.Input([8, 8]),
                keras.layers.Flatten(name="pixels"),
                keras.layers.Dense(self.units, "relu", name="hidden_0"),
                keras.layers.Dense(self.units, "relu", name="hidden_1"),
                keras.layers.Dense(_CLASSES, name="logits"),
            ],
            name="digits_mlp",
        )

        self._model = model
        return self.training.step(cross_entropy(partial(model, training=True)), model.trainable_variables)

    def evaluate(self) -> dict[str, float]:
        assert self._model is not None
        return {"accuracy": accuracy(self._model, *digits(held_out=True))}

    def dataset(self, seed: int) -> "tf.data.Dataset":
        """Return (image [8, 8] float32 in 0..1, label [] int32), endless, in a new order each epoch."""
        return endless(*digits(), seed=seed)


_SIDE = 8
_KERNEL = 3


@dataclass(kw_only=True, slots=True)
class DigitsCnn:
    """Two convolutions with batch normalisation, then dropout, over scikit-learn's 1,797 digits.

    Args:
        batch_size: global examples per step.
        filters: channels of the first convolution; the second has twice as many.
        units: width of the dense layer before the logits.
        dropout: share of the features that are dropped before the logits.
    """

    name: str
    training: Training
    batch_size: int
    filters: int
    units: int
    dropout: float
    flops_per_example: float | None = field(init=False)
    _model: "keras.Model | None" = field(init=False, default=None)

    def __post_init__(self) -> None:
        patch = _KERNEL * _KERNEL
        pixels = _SIDE * _SIDE
        pooled = 2 * self.filters * pixels // 4
        self.flops_per_example = (
            dense_flops(patch, self.filters, positions=pixels)
            + dense_flops(patch * self.filters, 2 * self.filters, positions=pixels)
            + dense_flops(pooled, self.units)
            + dense_flops(self.units, _CLASSES)
        )

    def train_step(self) -> TrainStep:
        import keras

        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input([_SIDE, _SIDE]),
                layers.Reshape([_SIDE, _SIDE, 1], name="channel"),
                # The normalisation's offset makes a preceding bias useless.
                layers.Conv2D(self.filters, _KERNEL, padding="same", use_bias=False, name="conv_0"),
                layers.BatchNormalization(name="norm_0"),
                layers.ReLU(name="relu_0"),
                layers.Conv2D(2 * self.filters, _KERNEL, padding="same", use_bias=False, name="conv_1"),
                layers.BatchNormalization(name="norm_1"),
                layers.ReLU(name="relu_1"),
                layers.MaxPooling2D(name="pool"),
                layers.Flatten(name="flat"),
                layers.Dense(self.units, "relu", name="hidden"),
                layers.Dropout(self.dropout, name="dropout"),
                layers.Dense(_CLASSES, name="logits"),
            ],
            name="digits_cnn",
        )

        self._model = model
        return self.training.step(cross_entropy(partial(model, training=True)), model.trainable_variables)

    def evaluate(self) -> dict[str, float]:
        assert self._model is not None
        return {"accuracy": accuracy(self._model, *digits(held_out=True))}

    def dataset(self, seed: int) -> "tf.data.Dataset":
        """Return (image [8, 8] float32 in 0..1, label [] int32), endless, in a new order each epoch."""
        return endless(*digits(), seed=seed)
