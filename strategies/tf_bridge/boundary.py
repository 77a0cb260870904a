"""Marks, while a step is traced, where gradients leave backward and enter the update."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn
from unittest import mock

import keras
import tensorflow as tf

from strategies.errors import CaptureError
from strategies.ir.names import node_slug
from strategies.ir.traced import TracedGradient

PREFIX = "gradient_boundary"


@dataclass(frozen=True, slots=True)
class Mark:
    """One gradient at the boundary; `call` numbers the gradient call that made it.

    Attributes:
        handle: the variable's resource handle, by identity.
        values: identity node of the dense gradient, or of a sparse one's rows.
        indices: identity node of the row ids, None when dense.
    """

    call: int
    handle: Any
    values: str
    indices: str | None

    def named(self, variable: str) -> TracedGradient:
        """The mark with its variable's name in place of the handle."""
        return TracedGradient(call=self.call, variable=variable, values=self.values, indices=self.indices)


@dataclass(slots=True)
class BoundaryRecorder:
    """Collects the gradients that a trace takes with respect to trainable variables, and the optimizers it applies.

    Attributes:
        loss: tensor of the loss in the trace.
        failure: what made a trace fail, kept because autograph rewrites the errors that pass through it.
    """

    marks: list[Mark] = field(default_factory=list)
    optimizers: list[Any] = field(default_factory=list)
    failure: CaptureError | None = None
    loss: str = ""
    _graph: Any = None
    _calls: int = 0

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Hook `tf.GradientTape.gradient`, `tf.gradients` and Keras's `Optimizer.apply` for the duration."""
        tape_gradient, graph_gradients = tf.GradientTape.gradient, tf.gradients
        apply = keras.optimizers.Optimizer.apply

        @tf.autograph.experimental.do_not_convert
        def hooked_tape(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            return self._mark(sources, tape_gradient(tape, target, sources, *args, **kwargs))

        @tf.autograph.experimental.do_not_convert
        def hooked_graph(ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
            return self._mark(xs, graph_gradients(ys, xs, *args, **kwargs))

        @tf.autograph.experimental.do_not_convert
        def hooked_apply(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if all(optimizer is not known for known in self.optimizers):
                self.optimizers.append(optimizer)
            return apply(optimizer, *args, **kwargs)

        with (
            mock.patch.object(tf.GradientTape, "gradient", hooked_tape),
            mock.patch.object(tf, "gradients", hooked_graph),
            mock.patch.object(keras.optimizers.Optimizer, "apply", hooked_apply),
        ):
            yield

    def begin(self, graph: Any) -> None:
        """Start a trace whose own graph is this one; gradients taken in a nested one are refused."""
        self._graph = graph
        self._calls = 0
        self.marks.clear()
        self.optimizers.clear()

    def fail(self, message: str) -> NoReturn:
        """Raise a CaptureError, and keep it."""
        self.failure = CaptureError(message)
        raise self.failure

    def _mark(self, sources: Any, gradients: Any) -> Any:
        if self._graph is None:
            return gradients
        call, self._calls = self._calls, self._calls + 1
        flat_sources = tf.nest.flatten(sources)
        flat_gradients = tf.nest.flatten(gradients)
        marked = [
            self._boundary(call, source, gradient)
            if _is_trainable(source) and gradient is not None
            else gradient
            for source, gradient in zip(flat_sources, flat_gradients, strict=True)
        ]
        return tf.nest.pack_sequence_as(sources, marked)

    def _boundary(self, call: int, source: Any, gradient: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        if graph is not self._graph:
            self.fail(
                f"train step: gradients must be taken in the step's own function, got variable {variable_name(source)} "
                f"differentiated inside the nested function {graph.name!r}; take the gradient outside it"
            )
        slug = f"{PREFIX}/{node_slug(variable_name(source))}"
        with tf.name_scope(""):
            if not isinstance(gradient, tf.IndexedSlices):
                dense = tf.identity(gradient, name=f"{slug}/values")
                self.marks.append(Mark(call, raw_variable(source).handle, dense.op.name, None))
                return dense
            values = tf.identity(gradient.values, name=f"{slug}/values")
            indices = tf.identity(gradient.indices, name=f"{slug}/indices")
            self.marks.append(Mark(call, raw_variable(source).handle, values.op.name, indices.op.name))
            return merge_duplicates(values, indices, gradient.dense_shape, name=f"{slug}/merged")


def merge_duplicates(
    values: tf.Tensor, indices: tf.Tensor, dense_shape: tf.Tensor | None, *, name: str
) -> tf.IndexedSlices:
    """One row per id, rows of equal ids summed, ids in the order of their first appearance.

    Args:
        values: [n_rows, …]. indices: [n_rows].
    """
    with tf.name_scope(f"{name}/"):
        ids, position = tf.unique(indices)
        rows = tf.math.unsorted_segment_sum(values, position, tf.size(ids))
        return tf.IndexedSlices(rows, ids, dense_shape)


def raw_variable(variable: Any) -> Any:
    """The tf.Variable behind a keras.Variable, or the variable itself."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def variable_name(variable: Any) -> str:
    """`path` of a Keras variable, otherwise the name without `:0`."""
    return str(getattr(variable, "path", None) or variable.name).removesuffix(":0")


def _is_trainable(source: Any) -> bool:
    return isinstance(source, tf.Variable | keras.Variable) and bool(source.trainable)
