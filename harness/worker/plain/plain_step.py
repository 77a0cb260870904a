"""A workload's own step as plain TensorFlow, without the hooks of capture."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from harness.equivalence.yardstick import Array
from strategies.capture.tracing import CapturableStep, arguments_of
from strategies.ir.graph import Graph
from strategies.tf_bridge.graphdef import graph_from_graphdef

AnyStep: TypeAlias = CapturableStep | Callable[..., object] | keras.Model


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonDraws:
    """States of the generators of Python and NumPy, whose numbers a trace keeps as constants."""

    of_python: tuple[Any, ...]
    of_numpy: dict[str, Any]

    @classmethod
    def now(cls) -> "PythonDraws":
        """Return the current states."""
        return cls(of_python=random.getstate(), of_numpy=np.random.get_state(legacy=False))

    def resume(self) -> None:
        """Set the generators to these states."""
        random.setstate(self.of_python)
        np.random.set_state(self.of_numpy)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainStep:
    """A user's step, traced once.

    Attributes:
        concrete: the traced function; its graph lists the variables that it uses.
        graph: the same graph, as our passes see graphs.
    """

    concrete: tf.types.experimental.ConcreteFunction
    graph: Graph
    _element_spec: object
    _function: Callable[..., object]

    def __call__(self, batch: Sequence[Array]) -> float | None:
        """Make a step on a batch and return its loss, None where it returns none."""
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
    # The user's summaries are to hold the run's own steps alone.
    with tf.summary.record_if(condition=False):
        concrete = function.get_concrete_function(*args, **kwargs)
    graph = graph_from_graphdef(concrete.graph.as_graph_def())
    return PlainStep(concrete=concrete, graph=graph, _element_spec=element_spec, _function=function)


@contextmanager
def _as_written() -> Iterator[None]:
    """Turn TensorFlow's graph optimizer off for functions, as `Use.AS_WRITTEN` does for sessions.

    It replaces operations by other kernels, depending on their neighbours, and these round differently.
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
    # Traced anew, because a trace that exists records summaries; and without XLA, which rounds differently
    # and draws other numbers.
    return tf.function(whole.python_function, autograph=getattr(whole, "_autograph", True))


def _trained_as_by_fit(model: keras.Model) -> Callable[[object], None]:
    """The step of `model.fit`. Its logs hold the mean loss of all steps, which a variable holds as well."""

    def train(batch: object) -> None:
        model.train_step(batch)

    return train


def _composed(step: CapturableStep) -> Callable[[object], tf.Tensor]:
    """A TrainStep, written out as in a training loop."""
    optimizer, variables = step.optimizer, list(step.variables)

    def train(batch: object) -> tf.Tensor:
        args, kwargs = arguments_of(step.loss, batch)
        with tf.GradientTape() as tape:
            loss = step.loss(*args, **kwargs)
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, variables)
        if step.clip_global_norm is not None:
            # Gradients of the scaled loss are larger by the same factor.
            norm = optimizer.scale_loss(tf.constant(step.clip_global_norm))
            gradients, _ = tf.clip_by_global_norm(gradients, norm)
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
        return loss

    return train


def _loss_among(returned: object) -> tf.Tensor | None:
    """The loss in the result of a whole step: under the key `loss`, or the first of several."""
    if isinstance(returned, Mapping):
        return returned.get("loss")
    if isinstance(returned, tuple | list):
        return returned[0] if returned else None
    return returned if isinstance(returned, tf.Tensor) else None
