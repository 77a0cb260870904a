"""The step of a compiled Keras model: what `model.fit` does with one batch."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from workloads.protocol import TrainStep, Workload, WorkloadError

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


@dataclass(frozen=True, kw_only=True, slots=True)
class StepToCapture:
    """A workload's step.

    Attributes:
        notes: sentences about settings of the author's that the step ignores.
        model: compiled model whose own `train_step` is used; None if the author wrote the step.
    """

    step: "TrainStep | Callable[..., tf.Tensor]"
    notes: tuple[str, ...] = ()
    model: "keras.Model | None" = None


def step_of(workload: Workload, example: object) -> StepToCapture:
    """Step of a workload; if the workload returns a compiled Keras model, the step of that model.

    Args:
        example: structure of `tf.TensorSpec` for one example, without the batch axis.
    Raises:
        WorkloadError: the model is not compiled.
    """
    import keras

    step = workload.train_step()
    if not isinstance(step, keras.Model):
        return StepToCapture(step=step)
    captured = step_of_model(step, example)
    return StepToCapture(
        step=captured,
        notes=_left_out(step),
        model=step if isinstance(captured, TrainStep) else None,
    )


def step_of_model(model: "keras.Model", example: object) -> "TrainStep | Callable[..., tf.Tensor]":
    """Step of `model.fit` on one batch: a TrainStep, or the model's own `train_step` as a whole.

    Args:
        example: structure of `tf.TensorSpec` for one example, without the batch axis.
    Raises:
        WorkloadError: the model is not compiled.
    """
    import keras
    import tensorflow as tf

    if not model.compiled:
        message = f"model {model.name!r} is not compiled; call its compile(optimizer=…, loss=…) first"
        raise WorkloadError(message, field="train_step")
    if getattr(model.train_step, "__func__", None) is not keras.Model.train_step:
        step = model.train_step
        is_traced = hasattr(step, "python_function")  # the author has wrapped it in a tf.function
        return step if is_traced else tf.function(step)  # type: ignore[no-any-return]
    if not getattr(model, "inputs", None):
        _build(model, example)
    return TrainStep(
        loss=_loss(model),
        variables=model.trainable_variables,
        optimizer=model.optimizer,
        reduction=_reduction(model),
    )


def _build(model: "keras.Model", example: object) -> None:
    """Create the variables of a model that is built when first called, in a trace that runs nothing."""
    import keras
    import tensorflow as tf

    batch = tf.nest.map_structure(lambda s: tf.TensorSpec((None, *s.shape), s.dtype), example)
    x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
    tf.function(lambda inputs: model(inputs, training=True)).get_concrete_function(x)


def _loss(model: "keras.Model") -> "Callable[[Any], tf.Tensor]":
    """The loss of a batch as Keras's own `train_step` computes it, metrics updated on the way."""
    import keras
    import tensorflow as tf

    takes_training = "training" in inspect.signature(model.compute_loss).parameters
    training = {"training": True} if takes_training else {}
    # Keras's own list begins with the mean loss; a user's may omit it.
    mean_loss, *_ = keras.Model.metrics.fget(model)

    def loss(batch: object) -> tf.Tensor:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        y_pred = model(x, training=True)
        value = model.compute_loss(x, y, y_pred, sample_weight, **training)
        mean_loss.update_state(value, sample_weight=tf.shape(tf.nest.flatten(x)[0])[0])
        model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        return value

    return loss


def _reduction(model: "keras.Model") -> Literal["mean", "sum"]:
    """Reduction of the loss over examples; losses compiled by name or as a function use the mean."""
    import keras

    # An output without a loss has None.
    losses = [loss for loss in keras.tree.flatten(model.loss) if loss is not None]
    sums = [isinstance(loss, keras.Loss) and loss.reduction == "sum" for loss in losses]
    return "sum" if sums and all(sums) else "mean"


def _left_out(model: "keras.Model") -> tuple[str, ...]:
    """Notes on settings of `compile` that change how `fit` runs a step, not what the step computes."""
    settings = {
        "jit_compile=True": model.jit_compile,
        "run_eagerly=True": model.run_eagerly,
        f"steps_per_execution={model.steps_per_execution}": model.steps_per_execution > 1,
    }
    used = [setting for setting, is_asked in settings.items() if is_asked]
    if not used:
        return ()
    return (f"left out of compile(): {', '.join(used)}; each step runs by itself, as a graph, without XLA",)
