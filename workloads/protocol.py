"""A workload: a single-device training step and the examples it learns from; its errors."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from strategies.user_errors import Rules, quote

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


class WorkloadError(Exception):
    """Workload that cannot be found, built or read; a one-line message: what is wrong, the rule, what to do.

    Args:
        message: complete one-line message.
        field: name of the offending field, so that a caller can put its own path before it: `name` for the
            reference to the workload, a parameter, or an attribute of the workload; None if no single field
            is wrong.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainStep:
    """One training step, before anything is distributed.

    Args:
        loss: batch (the dataset's structure, batched) → scalar float loss: the mean over the batch's
            examples, or their sum if `reduction` is `sum`.
        variables: trainable variables, tf.Variable or keras.Variable; one may be unused by the loss.
        optimizer: Keras optimizer, already built on `variables`.
        clip_global_norm: upper limit for the norm of all gradients together, None for no clipping.
        reduction: `mean`, or `sum` for a loss that adds up over examples, also one divided by a fixed number
            such as the global batch size; strategies then sum the shards' results instead of averaging them.
    Raises:
        WorkloadError: an argument has the wrong type or value.
    """

    loss: "Callable[[Any], tf.Tensor]"
    variables: Sequence[Any]
    optimizer: Any
    clip_global_norm: float | None = None
    reduction: Literal["mean", "sum"] = "mean"

    def __post_init__(self) -> None:
        # Checked despite the annotations: a user's file is not type-checked.
        for field, (holds, rule) in _RULES.items():
            value = getattr(self, field)
            if not holds(value):
                raise WorkloadError(f"a TrainStep's {field} must be {rule}, got {quote(value)}", field=field)


_RULES: Rules = {
    "clip_global_norm": (
        lambda norm: norm is None or (isinstance(norm, Real) and 0 < float(norm) < math.inf),
        "a positive number or None",
    ),
    "reduction": (lambda reduction: reduction in ("mean", "sum"), "'mean' or 'sum'"),
    "variables": (lambda v: isinstance(v, Iterable), "a list, such as the model's trainable_variables"),
}


@runtime_checkable
class Workload(Protocol):
    """A model with its data, written for a single device."""

    name: str
    batch_size: int
    """Default global batch size."""
    flops_per_example: float | None
    """Floating-point operations of forward and backward for one example; None if unknown."""

    def train_step(self) -> "TrainStep | Callable[..., tf.Tensor] | keras.Model":
        """Create all variables and return the step.

        Called once, eagerly, after the random seeds were set.

        Returns:
            A `TrainStep`; a compiled `keras.Model`, which is trained like `model.fit` does; or a
            `tf.function` that takes a batch, applies the gradients of its own tape and returns the scalar
            mean loss. If it returns no loss, the tensor that its gradients were taken of is used. Losses and
            steps may take the parts of a batch as separate arguments.
        """
        ...

    def dataset(self, seed: int) -> "tf.data.Dataset":
        """Return unbatched examples (tuples, dicts or tensors of fixed shapes), finite or not."""
        ...


@runtime_checkable
class EvaluatedWorkload(Workload, Protocol):
    """A workload with metrics for a trained model."""

    def evaluate(self) -> Mapping[str, float]:
        """Return metrics by name, such as accuracy on examples that no step trains on.

        Called after `train_step`, once the variables have their trained values.
        """
        ...


def did_you_mean(received: str, known: Iterable[str]) -> str:
    """Return the end of an error message: the most similar name, and all known names."""
    names = sorted(known)
    if not names:
        return "; there are none"
    close = get_close_matches(received, names, n=1, cutoff=0.6)
    guess = f"; did you mean {close[0]!r}?" if close else ";"
    return f"{guess} known: {', '.join(names)}"
