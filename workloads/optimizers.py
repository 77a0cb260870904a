"""The optimizers that every shipped workload offers."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from workloads.protocol import TrainStep, WorkloadError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    import keras
    import tensorflow as tf


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerChoice:
    """One row of the table: a class of `keras.optimizers` and its arguments."""

    keras_class: str
    learning_rate: float
    arguments: "Mapping[str, float]" = field(default_factory=dict)


OPTIMIZERS: "Mapping[str, OptimizerChoice]" = {
    "sgd": OptimizerChoice(keras_class="SGD", learning_rate=0.05),
    "momentum": OptimizerChoice(keras_class="SGD", learning_rate=0.02, arguments={"momentum": 0.9}),
    "adam": OptimizerChoice(keras_class="Adam", learning_rate=0.002),
    "adamw": OptimizerChoice(keras_class="AdamW", learning_rate=0.002, arguments={"weight_decay": 0.004}),
    "adagrad": OptimizerChoice(keras_class="Adagrad", learning_rate=0.05),
    "rmsprop": OptimizerChoice(keras_class="RMSprop", learning_rate=0.001),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """Optimizer settings of a shipped model.

    Args:
        optimizer: name of a row of `OPTIMIZERS`.
        learning_rate: learning rate; None for the optimizer's default.
        clip_global_norm: upper limit for the norm of all gradients together; None for no clipping.
    """

    optimizer: str
    learning_rate: float | None = None
    clip_global_norm: float | None = None

    def step(self, loss: "Callable[[Any], tf.Tensor]", variables: "Sequence[keras.Variable]") -> TrainStep:
        """Return the training step of a mean loss, with a new optimizer for the given variables."""
        return TrainStep(
            loss=loss,
            variables=variables,
            optimizer=build_optimizer(self.optimizer, learning_rate=self.learning_rate, variables=variables),
            clip_global_norm=self.clip_global_norm,
        )


def build_optimizer(
    name: str, *, learning_rate: float | None, variables: "Sequence[keras.Variable]"
) -> "keras.optimizers.Optimizer":
    """Make an optimizer and create its slots, so that none is created while a step is traced.

    Args:
        name: name of a row of `OPTIMIZERS`.
        learning_rate: learning rate; None for the row's default.

    Raises:
        WorkloadError: the table has no such name.
    """
    if name not in OPTIMIZERS:
        message = f"optimizer {name!r} is not known{did_you_mean(name, OPTIMIZERS)}"
        raise WorkloadError(message, field="optimizer")
    import keras

    row = OPTIMIZERS[name]
    rate = row.learning_rate if learning_rate is None else learning_rate
    optimizer = getattr(keras.optimizers, row.keras_class)(learning_rate=rate, **row.arguments)
    optimizer.build(variables)
    return optimizer
