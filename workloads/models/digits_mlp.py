"""A small perceptron over real handwritten digits."""

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from workloads.data.arrays import accuracy, digits, endless
from workloads.flops import dense_flops
from workloads.models.losses import cross_entropy
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
        name: as references name it.
        training: optimizer and clipping.
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
        """Create the model and its optimizer."""
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
        """Return the share of held-out digits that the model of the last `train_step` names rightly."""
        assert self._model is not None
        return {"accuracy": accuracy(self._model, *digits(held_out=True))}

    def dataset(self, seed: int) -> "tf.data.Dataset":
        """Return (image [8, 8] float32 in 0..1, label [] int32), endless, in a new order each epoch."""
        return endless(*digits(), seed=seed)
