"""Boundaries of gradients while a step is traced: hooks into gradients and into `apply` of optimizers."""

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias

import keras
import tensorflow as tf

from strategies.capture.hooks import (
    StatisticsRecorder,
    line_of_operation,
    overriding_classes,
    replaced,
    requiring_batch,
)
from strategies.errors import CaptureError
from strategies.ir.assembly.traced import TracedGradient
from strategies.ir.graph import node_slug

TARGET_PREFIX = "gradient_target"


@dataclass(slots=True)
class TargetRecorder:
    """Records the target of each gradient call, without its loss scale.

    Attributes:
        targets: gradient call → node of its target, if the target is a loss.
    """

    targets: dict[int, str] = field(default_factory=dict)
    # With the scaled tensor itself, because ids of deleted tensors are reused.
    _scaled: dict[int, tuple[object, object]] = field(default_factory=dict)

    @contextmanager
    def recording(self) -> Iterator[None]:
        with ExitStack() as hooks:
            for owner in overriding_classes(keras.optimizers.Optimizer, "scale_loss"):
                hooks.enter_context(replaced(owner, "scale_loss", self._scale_hook))
            yield

    def begin(self) -> None:
        self.targets.clear()
        self._scaled.clear()

    def record(self, call: int, target: object, weights: object) -> None:
        """Record the target of a gradient call; weighted targets are not a loss of the step."""
        loss = self.loss_of(target, weights)
        if loss is not None:
            with tf.name_scope(""):
                self.targets[call] = tf.identity(loss, name=f"{TARGET_PREFIX}/{call}").op.name

    def loss_of(self, target: object, weights: object) -> tf.Tensor | None:
        parts = [self._unscaled(part) for part in tf.nest.flatten(target) if part is not None]
        losses = [part for part in parts if isinstance(part, tf.Tensor) and part.dtype.is_floating]
        if weights is not None or len(losses) < len(parts):
            return None
        with tf.name_scope(""):
            sums = [tf.cast(tf.reduce_sum(loss), losses[0].dtype) for loss in losses]
            return sums[0] if len(sums) == 1 else tf.add_n(sums)

    def _scale_hook(self, scale_loss: Callable[..., object]) -> Callable[..., object]:
        def hooked(optimizer: keras.optimizers.Optimizer, loss: object) -> object:
            scaled = scale_loss(optimizer, loss)
            if scaled is not loss:
                self._scaled[id(scaled)] = (scaled, loss)
            return scaled

        return hooked

    def _unscaled(self, part: object) -> object:
        while id(part) in self._scaled:
            _, part = self._scaled[id(part)]
        return part


PREFIX = "gradient_boundary"
AnyOptimizer: TypeAlias = keras.optimizers.Optimizer | tf.compat.v1.train.Optimizer
Hook: TypeAlias = Callable[[Callable[..., object]], Callable[..., object]]
_APPLYING = ((keras.optimizers.Optimizer, "apply"), (tf.compat.v1.train.Optimizer, "apply_gradients"))
# They refer to this module's function, not to its public names.
_GRADIENTS_OF_V1 = tf.compat.v1.train.Optimizer.compute_gradients.__globals__["gradients"]


@dataclass(frozen=True, slots=True)
class BoundaryMark:
    """One gradient at the boundary, taken by gradient call number `call`.

    Attributes:
        handle: resource handle of the variable, compared by identity.
        values: identity node of the dense gradient, or of a sparse one's rows.
        indices: identity node of the row ids, None for a dense gradient.
    """

    call: int
    handle: tf.Tensor
    values: str
    indices: str | None = None

    def named(self, variable: str) -> TracedGradient:
        return TracedGradient(call=self.call, variable=variable, values=self.values, indices=self.indices)


@dataclass(slots=True)
class BoundaryRecorder:
    """Records gradients with respect to trainables, and the optimizers that apply them.

    Attributes:
        loss: name of the loss tensor in the trace, None if the step returns no loss.
        results: position → tensor that a whole step returns in addition to its loss.
        not_fetched: positions of returned values that are not dense tensors.
        n_examples: examples in the trace's batch, None for a free axis.
        created: Keras variables created while tracing (metrics); TensorFlow's names for them may differ from
            their paths.
        carried: variables with one row per example, such as the state of a stateful layer.
        vectorized: variable and user's line of each gradient taken inside a vectorized map.
        failure: first error, recorded because autograph rewrites errors that pass through it.
    """

    n_examples: int | None = None
    marks: list[BoundaryMark] = field(default_factory=list)
    optimizers: list[AnyOptimizer] = field(default_factory=list)
    created: list[keras.Variable] = field(default_factory=list)
    carried: list[keras.Variable] = field(default_factory=list)
    vectorized: list[tuple[str, str]] = field(default_factory=list)
    failure: CaptureError | None = None
    loss: str | None = None
    targets: TargetRecorder = field(default_factory=TargetRecorder)
    results: dict[str, tf.Tensor] = field(default_factory=dict)
    not_fetched: tuple[str, ...] = ()
    statistics: StatisticsRecorder = field(default_factory=StatisticsRecorder)
    _graph: tf.Graph | None = None
    _calls: int = 0

    @contextmanager
    def recording(self) -> Iterator[None]:
        with ExitStack() as hooks:
            hooks.enter_context(hooked_gradients(self._tape_hook, self._graph_hook))
            hooks.enter_context(self.recording_optimizers())
            checked = functools.partial(
                requiring_batch,
                n_examples=self.n_examples,
                refuse=self.refuse,
                carries=self.carried.extend,
            )
            hooks.enter_context(replaced(keras.layers.Layer, "__call__", checked, is_converted=True))
            hooks.enter_context(self.statistics.recording())
            yield

    @contextmanager
    def recording_optimizers(self) -> Iterator[None]:
        with ExitStack() as hooks:
            for base, method in _APPLYING:
                for owner in overriding_classes(base, method):
                    hooks.enter_context(replaced(owner, method, self._apply_hook))
            hooks.enter_context(replaced(keras.Variable, "__init__", self._creation_hook))
            hooks.enter_context(self.targets.recording())
            yield

    def begin(self, graph: tf.Graph) -> None:
        """Start a trace in this graph; gradients taken in a nested graph are refused."""
        self._graph = graph
        self._calls = 0
        self.marks.clear()
        self.optimizers.clear()
        self.carried.clear()
        self.vectorized.clear()
        self.results.clear()
        self.targets.begin()
        self.statistics.begin(graph)

    def fail(self, message: str) -> NoReturn:
        self.refuse(CaptureError(message))

    def refuse(self, failure: CaptureError) -> NoReturn:
        self.failure = failure
        raise failure

    def _tape_hook(self, gradient: Callable[..., object]) -> Callable[..., object]:
        def hooked(
            tape: tf.GradientTape, target: object, sources: object, *args: object, **kw: object
        ) -> object:
            weights = args[0] if args else kw.get("output_gradients")
            return self._mark(target, sources, gradient(tape, target, sources, *args, **kw), weights)

        return hooked

    def _graph_hook(self, gradients: Callable[..., object]) -> Callable[..., object]:
        def hooked(ys: object, xs: object, *args: object, **kw: object) -> object:
            weights = args[0] if args else kw.get("grad_ys")
            return self._mark(ys, xs, gradients(ys, xs, *args, **kw), weights)

        return hooked

    def _apply_hook(self, apply: Callable[..., object]) -> Callable[..., object]:
        def hooked(optimizer: AnyOptimizer, *args: object, **kw: object) -> object:
            self.applied(optimizer)
            return apply(optimizer, *args, **kw)

        return hooked

    def _creation_hook(self, create: Callable[..., object]) -> Callable[..., object]:
        def hooked(variable: keras.Variable, *args: object, **kw: object) -> None:
            create(variable, *args, **kw)
            self.created.append(variable)

        return hooked

    def applied(self, optimizer: AnyOptimizer) -> None:
        if all(optimizer is not known for known in self.optimizers):
            self.optimizers.append(optimizer)

    def _mark(self, target: object, sources: object, gradients: object, weights: object) -> object:
        if self._graph is None:
            return gradients
        call, self._calls = self._calls, self._calls + 1
        flat_sources = tf.nest.flatten(sources)
        flat_gradients = tf.nest.flatten(gradients)
        marked = [
            self._boundary(call, source, gradient)
            if is_trainable(source) and gradient is not None
            else gradient
            for source, gradient in zip(flat_sources, flat_gradients, strict=True)
        ]
        if any(mark.call == call for mark in self.marks):
            self.targets.record(call, target, weights)
        return tf.nest.pack_sequence_as(gradients, marked)

    def _boundary(
        self, call: int, source: "tf.Variable | keras.Variable", gradient: "tf.Tensor | tf.IndexedSlices"
    ) -> "tf.Tensor | tf.IndexedSlices":
        graph = tf.compat.v1.get_default_graph()
        values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
        if graph is not self._graph:
            line = line_of_operation(values.op)
            self.fail(
                "train step: gradients must be taken in the step's own function, got variable "
                f"{variable_name(source)!r} differentiated inside the loop, branch or nested function "
                f"{graph.name!r}; take the gradient outside it, in a loop over range() in place of tf.range()"
                + (f" ({line})" if line else "")
            )
        if _in_vectorized_map(graph):
            self.vectorized.append((variable_name(source), line_of_operation(values.op)))
        slug = boundary_slug(source)
        handle = raw_variable(source).handle
        with tf.name_scope(""):
            if not isinstance(gradient, tf.IndexedSlices):
                dense = tf.identity(gradient, name=f"{slug}/values")
                self.marks.append(BoundaryMark(call, handle, dense.op.name))
                return dense
            values = tf.identity(gradient.values, name=f"{slug}/values")
            indices = tf.identity(gradient.indices, name=f"{slug}/indices")
            self.marks.append(BoundaryMark(call, handle, values.op.name, indices.op.name))
            return tf.IndexedSlices(values, indices, _dense_shape(source, gradient))


@contextmanager
def hooked_gradients(tape_hook: Hook, graph_hook: Hook) -> Iterator[None]:
    """Hook `GradientTape.gradient` and `tf.gradients` for the duration."""
    with ExitStack() as hooks:
        hooks.enter_context(replaced(tf.GradientTape, "gradient", tape_hook))
        for owner in (tf, tf.compat.v1, _GRADIENTS_OF_V1):
            hooks.enter_context(replaced(owner, "gradients", graph_hook))
        yield


def _in_vectorized_map(graph: tf.Graph) -> bool:
    """True while operations are created for a single row, as in `tf.vectorized_map`."""
    scope = graph.get_name_scope().rpartition("loop_body")
    row_number = f"{scope[0]}{scope[1]}{scope[2].partition('/')[0]}/PlaceholderWithDefault"
    return bool(scope[1]) and any(op.name == row_number for op in graph.get_operations())


def _dense_shape(source: "tf.Variable | keras.Variable", gradient: tf.IndexedSlices) -> tf.Tensor | None:
    """Static shape of a sparse gradient, so that its update need not read it from the forward pass."""
    shape = gradient.dense_shape
    if shape is None or not (known := raw_variable(source).shape).is_fully_defined():
        return shape
    return tf.constant(known.as_list(), shape.dtype)


def boundary_slug(variable: "tf.Variable | keras.Variable") -> str:
    """Common prefix of the names of a variable's gradient marks."""
    return f"{PREFIX}/{node_slug(variable_name(variable))}"


def raw_variable(variable: "tf.Variable | keras.Variable") -> tf.Variable:
    """tf.Variable of a keras.Variable, or the variable itself."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def variable_name(variable: "tf.Variable | keras.Variable") -> str:
    """`path` of a Keras variable, otherwise the name without `:0`."""
    return str(getattr(variable, "path", None) or variable.name).removesuffix(":0")


def is_trainable(source: object) -> bool:
    """True if gradients with respect to `source` can cross the boundary."""
    return isinstance(source, tf.Variable | keras.Variable) and bool(source.trainable)
