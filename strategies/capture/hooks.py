"""Hooks into TensorFlow and Keras while a step is traced, and source lines of traced nodes."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import keras
import tensorflow as tf

from strategies.errors import CaptureError
from strategies.ir.graph import Shape, node_slug
from strategies.ir.train_graph import Statistic
from strategies.tf_bridge.attrs import dtype_of
from strategies.user_errors import users_line


@contextmanager
def replaced(
    owner: object,
    name: str,
    hook: Callable[[Callable[..., object]], Callable[..., object]],
    *,
    is_converted: bool = False,
) -> Iterator[None]:
    """Replace an attribute within the context; an inherited attribute is inherited again afterwards.

    Args:
        hook: function from the original function to its replacement.
        is_converted: True if autograph may convert the original; the hook must then have the original's name.
    """
    original = getattr(owner, name)
    own = name in vars(owner)
    hooked = hook(original)
    setattr(owner, name, hooked if is_converted else tf.autograph.experimental.do_not_convert(hooked))
    try:
        yield
    finally:
        if own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)


def overriding_classes(base: type, method: str) -> Iterator[type]:
    """Yield a class and every subclass that overrides the method."""
    yield base
    waiting: list[type] = list(base.__subclasses__())
    seen: set[type] = set()
    while waiting:
        cls = waiting.pop()
        if cls not in seen:
            seen.add(cls)
            waiting += cls.__subclasses__()
            if method in vars(cls):
                yield cls


def lines_of(graph: tf.Graph) -> dict[str, str]:
    """Node → `file.py:12` of the user's line that made it; nodes of a function are `function/node`."""
    # TensorFlow has no public access to the graphs of a graph's functions.
    functions = {name: getattr(f, "graph", None) for name, f in graph._functions.items()}  # noqa: SLF001
    named = [("", graph), *((f"{name}/", body) for name, body in functions.items() if body is not None)]
    lines = ((within + op.name, line_of_operation(op)) for within, g in named for op in g.get_operations())
    return {name: line for name, line in lines if line}


def line_of_operation(op: tf.Operation) -> str:
    """`file.py:12` of the innermost frame in the user's code, or an empty string."""
    return users_line((frame.filename, frame.lineno) for frame in reversed(op.traceback or ()))


PREFIX = "batch_statistics"
_MASKED = "has a mask, so that examples do not count alike; normalise without one"
Moments = tuple[tf.Tensor, tf.Tensor]


@dataclass(slots=True)
class StatisticsRecorder:
    """Records the means over examples that Keras's BatchNormalization computes.

    Attributes:
        own: path of a layer whose means cannot be marked → reason.
        synchronized: paths of layers whose author requests means over all replicas' examples.
    """

    marks: list[Statistic] = field(default_factory=list)
    own: dict[str, str] = field(default_factory=dict)
    synchronized: dict[str, None] = field(default_factory=dict)
    _layer: keras.layers.BatchNormalization | None = None
    _graph: tf.Graph | None = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        with ExitStack() as hooks:
            hooks.enter_context(replaced(keras.layers.BatchNormalization, "call", self._call_hook))
            hooks.enter_context(replaced(tf.nn, "moments", self._moments_hook))
            yield

    def begin(self, graph: tf.Graph) -> None:
        self._graph = graph
        self.marks.clear()
        self.own.clear()
        self.synchronized.clear()

    def _call_hook(self, call: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(call)
        def hooked_call(
            layer: keras.layers.BatchNormalization,
            inputs: tf.Tensor,
            training: object = None,
            mask: tf.Tensor | None = None,
        ) -> object:
            if not (training and layer.trainable):
                return call(layer, inputs, training=training, mask=mask)
            if mask is not None:
                self.own[layer.path] = _MASKED
            is_synchronized = layer.synchronized
            if is_synchronized:
                self.synchronized[layer.path] = None
            before, self._layer = self._layer, None if mask is not None else layer
            # One device has all examples; TensorFlow's test for that bypasses `tf.nn.moments`.
            layer.synchronized = False
            try:
                return call(layer, inputs, training=training, mask=mask)
            finally:
                self._layer, layer.synchronized = before, is_synchronized

        return hooked_call

    def _moments_hook(self, moments: Callable[..., object]) -> Callable[..., object]:
        def hooked_moments(x: tf.Tensor, axes: Sequence[int], *args: object, **kw: object) -> object:
            layer = self._layer
            if layer is None or 0 not in axes:
                return moments(x, axes, *args, **kw)
            return self._marked_moments(layer.path, x, axes, keepdims=bool(kw.get("keepdims")))

        return hooked_moments

    def _marked_moments(self, layer: str, x: tf.Tensor, axes: Sequence[int], *, keepdims: bool) -> Moments:
        """`tf.nn.moments` with both means marked; the variance is computed around the marked mean."""
        mean = self._marked(layer, "mean", tf.reduce_mean(x, axes, keepdims=True))
        deviations = tf.math.squared_difference(x, tf.stop_gradient(mean))
        variance = self._marked(layer, "variance", tf.reduce_mean(deviations, axes, keepdims=True))
        if keepdims:
            return mean, variance
        return tf.squeeze(mean, axes), tf.squeeze(variance, axes)

    def _marked(self, layer: str, name: str, value: tf.Tensor) -> tf.Tensor:
        def identity(
            inner: tf.Tensor,
        ) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            def gradient(upstream: tf.Tensor) -> tf.Tensor:
                return self._mark(layer, f"{name}_gradient", upstream, backward=True)

            return self._mark(layer, name, inner, backward=False), gradient

        return tf.custom_gradient(identity)(value)

    def _mark(self, layer: str, name: str, value: tf.Tensor, *, backward: bool) -> tf.Tensor:
        graph = tf.compat.v1.get_default_graph()
        if graph is not self._graph:
            self.own[layer] = f"is called inside the function {graph.name!r}; call it outside"
            return value
        if not value.shape.is_fully_defined():
            self.own[layer] = f"has statistics of unknown shape {value.shape}; give its input a static one"
            return value
        with tf.name_scope(""):
            marked = tf.identity(value, name=f"{PREFIX}/{node_slug(layer)}/{name}")
        shape = Shape(tuple(value.shape.as_list()))
        dtype = dtype_of(value.dtype.as_datatype_enum)
        assert dtype is not None
        self.marks.append(
            Statistic(layer=layer, node=marked.op.name, dtype=dtype, shape=shape, backward=backward)
        )
        return marked


class FixedBatchError(CaptureError):
    """A layer that supports only batches of `n_examples` got others in a trace."""

    def __init__(self, layer: str, n_examples: int) -> None:
        super().__init__(f"layer {layer!r} takes batches of {n_examples} examples only")
        self.layer = layer
        self.n_examples = n_examples

    def of_shards(self, shard: int | None) -> CaptureError:
        return CaptureError(
            f"train step: layer {self.layer!r} takes batches of {self.n_examples} examples only, got shards "
            f"of {shard or 'different sizes'}; set batch_size to {self.n_examples} times the number of "
            f"replicas, in a run to {self.n_examples} with measure.batch=per-replica, or build the model "
            "without batch_shape and stateful"
        )


def requiring_batch(
    call: Callable[..., object],
    *,
    n_examples: int | None,
    refuse: Callable[[CaptureError], object],
    carries: Callable[[Sequence[keras.Variable]], object],
) -> Callable[..., object]:
    """Wrap `Layer.__call__` to refuse a batch size that the layer does not support.

    Args:
        n_examples: examples in the trace's batch, None for a free axis; unknown sizes are then refused as
            well.
        refuse: function that raises the error.
        carries: function that receives variables with state of each example for the next step.
    """

    @functools.wraps(call)
    def hooked(layer: keras.layers.Layer, *args: object, **kw: object) -> object:
        for tensor, size in _required(layer, args[0] if args else kw.get("inputs")):
            length = tensor.shape[0] if tensor.shape.rank else size
            if length != size and (length is not None or n_examples is None):
                refuse(FixedBatchError(layer.path, size))
        result = call(layer, *args, **kw)
        if isinstance(layer, keras.layers.RNN) and layer.stateful:
            carries(keras.tree.flatten(layer.states))
        return result

    return hooked


def _required(layer: keras.layers.Layer, inputs: object) -> list[tuple[tf.Tensor, int]]:
    tensors = [tensor for tensor in keras.tree.flatten(inputs) if isinstance(tensor, tf.Tensor)]
    if isinstance(layer, keras.layers.RNN):
        states = keras.tree.flatten(layer.states) if layer.stateful else []
        return [(tensors[0], int(states[0].shape[0]))] if states and tensors else []
    expected = keras.tree.flatten(getattr(layer, "inputs", None)) if isinstance(layer, keras.Model) else []
    if len(expected) != len(tensors):
        return []
    return [
        (tensor, int(symbolic.shape[0]))
        for tensor, symbolic in zip(tensors, expected, strict=True)
        if symbolic is not None and len(symbolic.shape) and symbolic.shape[0] is not None
    ]
