"""A model of `keras.applications` with random weights, on synthetic images or those of TFRecord files."""

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from workloads.data.arrays import endless
from workloads.data.files import data_files, image_records
from workloads.flops import layer_flops
from workloads.models.layers import cross_entropy
from workloads.optimizers import Training
from workloads.protocol import TrainStep, WorkloadError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable

    import keras
    import tensorflow as tf

_DATA_SEED = 20_240_301
_CHANNELS = 3
_LEAST_WIDTH = 2


@dataclass(kw_only=True, slots=True)
class KerasApplication:
    """An image classifier that Keras ships, trained from random weights.

    Args:
        model: its name in `keras.applications`.
        batch_size: global examples per step.
        input: height and width of an image; each model has its own minimum.
        classes: number of labels.
        width_multiplier: factor on the channels and units of every layer except the classifier, at most 1.
        examples: size of the data set.
        data: path of TFRecord files of images, used whole; None generates `examples` synthetic
            images.
        data_sha256: checksum that the data must have, see `data_files`; None skips the check.
        flops_per_example: operations of the convolutions and dense layers per example; None until
            `train_step` has built the model.
    """

    name: str
    model: str
    training: Training
    batch_size: int
    input: int
    classes: int
    width_multiplier: float
    examples: int
    data: str | None = None
    data_sha256: str | None = None
    flops_per_example: float | None = field(default=None, init=False)

    def train_step(self) -> TrainStep:
        """Create the model and its optimizer.

        Raises:
            WorkloadError: Keras has no such model, or the model does not support the image size or width
                multiplier.
        """
        builder = _builder(self.model)
        try:
            model = builder(
                weights=None,
                input_shape=(self.input, self.input, _CHANNELS),
                classes=self.classes,
                classifier_activation=None,
            )
        except ValueError as error:
            reason = _first_line(error)
            message = (
                f"{self.model} does not take images of {self.input} pixels: {reason}; give a larger input"
            )
            raise WorkloadError(message, field="input") from error
        if self.width_multiplier < 1:
            model = self._narrowed(model)
        self.flops_per_example = layer_flops(model)
        return self.training.step(cross_entropy(partial(model, training=True)), model.trainable_variables)

    def dataset(self, seed: int) -> "tf.data.Dataset":
        """Return (image [input, input, 3] float32, label [] int32), endless, in a new order each epoch.

        Raises:
            WorkloadError: the data is missing.
        """
        if self.data is not None:
            files = data_files(self.data, self.data_sha256)
            return image_records(files, side=self.input, classes=self.classes, seed=seed)
        rng = np.random.default_rng(_DATA_SEED)
        colours = rng.normal(size=(self.classes, 1, 1, _CHANNELS)).astype(np.float32)
        labels = rng.integers(self.classes, size=self.examples).astype(np.int32)
        images = rng.standard_normal((self.examples, self.input, self.input, _CHANNELS), np.float32)
        images += colours[labels]
        return endless(images, labels, seed=seed)

    def _narrowed(self, model: "keras.Model") -> "keras.Model":
        try:
            return _narrowed(model, self.width_multiplier)
        except (ValueError, TypeError) as error:
            # Keras reports such a layer with its whole configuration, and the reason beside it.
            reason = _first_line(error.__context__ or error)
            message = (
                f"width_multiplier must be 1 for {self.model}, got {self.width_multiplier:g}, with which its "
                f"layers do not fit each other: {reason}; leave it out"
            )
            raise WorkloadError(message, field="width_multiplier") from error


def _narrowed(model: "keras.Model", multiplier: float) -> "keras.Model":
    """Copy of a model with fewer channels and units; the classifier keeps its width.

    Raises:
        ValueError: a layer's width is set in another way and no longer fits its neighbours.
    Source:
        Howard et al. 2017, arXiv:1704.04861, section 3.3 (width multiplier).
    """
    import keras

    # Nodes after it, if any, only change its output's shape.
    classifier = next((layer for layer in reversed(model.layers) if _widths(layer)), None)

    def narrower(layer: keras.layers.Layer) -> keras.layers.Layer:
        config = layer.get_config()
        for key in _widths(layer) if layer is not classifier else ():
            config[key] = max(_LEAST_WIDTH, round(config[key] * multiplier))
        return type(layer).from_config(config)

    narrow: keras.Model = keras.models.clone_model(model, clone_function=narrower)
    return narrow


def _widths(layer: "keras.layers.Layer") -> set[str]:
    return {"filters", "units"} & set(layer.get_config())


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


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
