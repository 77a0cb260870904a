"""What a workload is: a single-device training step and the examples it learns from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import tensorflow as tf


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainStep:
    """One training step, before anything is distributed.

    Args:
        loss: batch (the dataset's structure, batched) -> scalar mean loss over the batch's examples, float.
        variables: trainable variables, tf.Variable or keras.Variable; one may be unused by the loss.
        optimizer: a keras optimizer that is already built on `variables`.
        clip_global_norm: upper limit for the norm of all gradients together, None for no clipping.
    """

    loss: "Callable[[Any], tf.Tensor]"
    variables: Sequence[Any]
    optimizer: Any
    clip_global_norm: float | None = None


@runtime_checkable
class Workload(Protocol):
    """A model with its data, in the form in which its author wrote it: for one device."""

    name: str
    batch_size: int
    """Global examples per step, the default."""
    flops_per_example: float | None
    """Floating-point operations of forward and backward for one example; None if unknown."""

    def train_step(self) -> "TrainStep | Callable[[Any], tf.Tensor]":
        """Create all variables and return the step.

        Called once, eagerly, after the random seeds were set.

        Returns:
            A `TrainStep`, or a `tf.function` that takes a batch, applies the gradients of its own tape and
            returns the scalar mean loss.
        """
        ...

    def dataset(self, seed: int) -> "tf.data.Dataset":
        """Return unbatched examples (tuples, dicts or tensors of fixed shapes), finite or not."""
        ...
