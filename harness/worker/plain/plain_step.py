"""A workload's own step as plain TensorFlow, as its author would run it: none of our hooks is in it."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from harness.equivalence.yardstick import Array
from strategies.capture.step_arguments import arguments_of
from strategies.capture.tracing import CapturableStep

AnyStep: TypeAlias = CapturableStep | Callable[..., object] | keras.Model


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonDraws:
    """States of the random numbers that a trace takes from Python and NumPy, and keeps as constants."""

    of_python: tuple[Any, ...]
    of_numpy: dict[str, Any]

    @classmethod
    def now(cls) -> "PythonDraws":
        """The states as they are."""
        return cls(of_python=random.getstate(), of_numpy=np.random.get_state(legacy=False))

    def resume(self) -> None:
        """Draw from these states again."""
        random.setstate(self.of_python)
        np.random.set_state(self.of_numpy)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainStep:
    """A user's step, traced once.

    Attributes:
        concrete: the traced function; its graph knows the variables that it uses.
    """

    concrete: tf.types.experimental.ConcreteFunction
    _element_spec: object
    _function: Callable[..., object]

    def __call__(self, batch: Sequence[Array]) -> float | None:
        """Make a step on a batch; return what it returns as its loss, None where that is nothing."""
        parts = [tf.convert_to_tensor(part) for part in batch]
        args, kwargs = arguments_of(self._function, tf.nest.pack_sequence_as(self._element_spec, parts))
        with _as_written():
            loss = _loss_among(self.concrete(*args, **kwargs))
        return None if loss is None else float(loss)


def plain_step(step: AnyStep, element_spec: object, n_examples: int | None) -> PlainStep:
    """Trace a user's step.

    Args:
        step: loss, variables and optimizer, a whole `tf.function`, or a compiled model.
        element_spec: structure of `tf.TensorSpec` of one example.
        n_examples: in a batch, None for any number.
    """
    function = _function(step)
    specs = tf.nest.map_structure(lambda s: tf.TensorSpec((n_examples, *s.shape), s.dtype), element_spec)
    args, kwargs = arguments_of(function, specs)
    # Summaries show the user's own steps, and these are ours.
    with tf.summary.record_if(condition=False):
        concrete = function.get_concrete_function(*args, **kwargs)
    return PlainStep(concrete=concrete, _element_spec=element_spec, _function=function)


@contextmanager
def _as_written() -> Iterator[None]:
    """Functions run with the operations that they have, as `Use.AS_WRITTEN` has it for sessions.

    Optimizers put other kernels in the place of operations, by their neighbours; these round otherwise.
    """
    option = "disable_meta_optimizer"
    before = tf.config.optimizer.get_experimental_options().get(option, False)
    tf.config.optimizer.set_experimental_options({option: True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({option: before})


def _function(step: AnyStep) -> tf.types.experimental.GenericFunction:
    if isinstance(step, keras.Model):
        return tf.function(_trained_as_by_fit(step))
    if isinstance(step, CapturableStep):
        return tf.function(_composed(step))
    whole: tf.types.experimental.GenericFunction = step
    # XLA rounds otherwise and draws other numbers.
    return tf.function(whole.python_function) if getattr(whole, "_jit_compile", None) else whole


def _trained_as_by_fit(model: keras.Model) -> Callable[[object], None]:
    """The step of `model.fit`, which returns no loss but its mean over steps; a variable has that, too."""

    def train(batch: object) -> None:
        model.train_step(batch)

    return train


def _composed(step: CapturableStep) -> Callable[[object], tf.Tensor]:
    """A TrainStep as a training loop has it."""
    optimizer, variables = step.optimizer, list(step.variables)

    def train(batch: object) -> tf.Tensor:
        args, kwargs = arguments_of(step.loss, batch)
        with tf.GradientTape() as tape:
            loss = step.loss(*args, **kwargs)
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, variables)
        if step.clip_global_norm is not None:
            # As large as gradients of the scaled loss are.
            norm = optimizer.scale_loss(tf.constant(step.clip_global_norm))
            gradients, _ = tf.clip_by_global_norm(gradients, norm)
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
        return loss

    return train


def _loss_among(returned: object) -> tf.Tensor | None:
    """The loss among what a whole step returns: under the key `loss`, or the first of several."""
    if isinstance(returned, Mapping):
        return returned.get("loss")
    if isinstance(returned, tuple | list):
        return returned[0] if returned else None
    return returned if isinstance(returned, tf.Tensor) else None
