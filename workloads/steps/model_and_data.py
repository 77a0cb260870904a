"""A workload of what people give to `model.fit`: a compiled Keras model and a dataset of batches."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from workloads.errors import WorkloadError
from workloads.python_file import Maker
from workloads.steps.precision import forget_models

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelAndData:
    """A model and its data, made by a function of a user's file.

    Attributes:
        name: the function's. path: its file.
        batch_size: of the dataset's batches; a run may take another, for examples are batched anew.
        call: the function, which is called for each model and each seed of the data.
    """

    name: str
    path: Path
    batch_size: int
    call: Callable[[], object]
    flops_per_example: float | None = None

    @classmethod
    def of(cls, made: object, *, call: Callable[[], object], factory: Maker) -> "ModelAndData":
        """The workload of a function that made a model, and of what it made beside it.

        Raises:
            WorkloadError: that is not a dataset of batches.
        """
        _, data = _pair(made, factory)
        batch_size = _batch_size(data, factory)
        forget_models()
        return cls(name=factory.name, path=factory.path, batch_size=batch_size, call=call)

    def train_step(self) -> "keras.Model":
        """A new model, which the function compiles."""
        return cast("tuple[keras.Model, tf.data.Dataset]", self.call())[0]

    def dataset(self, seed: int) -> "tf.data.Dataset":
        """The examples of the function's batches, its random numbers drawn from the seed."""
        import keras

        keras.utils.set_random_seed(seed)
        _, data = cast("tuple[keras.Model, tf.data.Dataset]", self.call())
        forget_models()
        return data.unbatch()


def holds_model(made: object) -> bool:
    """Whether a function made a Keras model, alone or first of several; imports nothing to tell."""
    keras = sys.modules.get("keras")
    first = made[0] if isinstance(made, tuple) and made else made
    return keras is not None and isinstance(first, keras.Model)


def _pair(returned: object, factory: Maker) -> "tuple[keras.Model, tf.data.Dataset]":
    import tensorflow as tf

    match returned:
        case (model, tf.data.Dataset() as data):
            return model, data
        case (_, *others):
            received = f"a model with {', '.join(type(other).__name__ for other in others) or 'nothing'}"
        case _:
            received = "a model alone"
    message = (
        f"{factory} must return its model with data, got {received}; return (model, dataset) as "
        "model.fit(dataset) takes them, arrays as tf.data.Dataset.from_tensor_slices((x, y)).batch(32)"
    )
    raise WorkloadError(message, field="name")


def _batch_size(data: "tf.data.Dataset", factory: Maker) -> int:
    """Examples in the first batch."""
    import tensorflow as tf

    parts = tf.nest.flatten(next(iter(data.take(1)), ()))
    sizes = {int(part.shape[0]) if part.shape.rank else 0 for part in parts}
    if len(sizes) == 1 and 0 not in sizes:
        return sizes.pop()
    received = "no batch" if not parts else f"parts of shapes {', '.join(str(p.shape) for p in parts)}"
    message = (
        f"{factory}: the dataset beside a model must be of batches, as model.fit(dataset) takes it, got "
        f"{received}; end it with .batch(32)"
    )
    raise WorkloadError(message, field="dataset")
