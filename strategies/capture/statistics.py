"""Marks, while a step is traced, the batch's statistics in BatchNormalization, and their gradients."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import keras
import tensorflow as tf

from strategies.capture.hooks import replaced
from strategies.ir.assembly.traced import TracedStatistic
from strategies.ir.graph import Shape
from strategies.ir.names import node_slug

PREFIX = "batch_statistics"
_MASKED = "has a mask, so that examples do not count alike; normalise without one"
Moments = tuple[tf.Tensor, tf.Tensor]


@dataclass(slots=True)
class StatisticsRecorder:
    """Collects the means that BatchNormalization takes over examples.

    Only Keras's own layer and what inherits its `call`; whoever calls `tf.nn.moments` otherwise means to have
    those of the shard.

    Attributes:
        marks: in the order in which they were traced.
        own: path of a layer whose means cannot be marked → why.
        synchronized: paths of layers whose author asks for means over all replicas' examples.
    """

    marks: list[TracedStatistic] = field(default_factory=list)
    own: dict[str, str] = field(default_factory=dict)
    synchronized: dict[str, None] = field(default_factory=dict)
    _layer: keras.layers.BatchNormalization | None = None
    _graph: tf.Graph | None = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Hook `BatchNormalization.call`, and `tf.nn.moments` while it runs, for the duration."""
        with ExitStack() as hooks:
            hooks.enter_context(replaced(keras.layers.BatchNormalization, "call", self._call_hook))
            hooks.enter_context(replaced(tf.nn, "moments", self._moments_hook))
            yield

    def begin(self, graph: tf.Graph) -> None:
        """Start a trace whose own graph is this one; in a nested one nothing is marked."""
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
            asked = layer.synchronized
            if asked:
                self.synchronized[layer.path] = None
            before, self._layer = self._layer, None if mask is not None else layer
            # One device has all examples; TensorFlow's way to find that out leads past `tf.nn.moments`.
            layer.synchronized = False
            try:
                return call(layer, inputs, training=training, mask=mask)
            finally:
                self._layer, layer.synchronized = before, asked

        return hooked_call

    def _moments_hook(self, moments: Callable[..., object]) -> Callable[..., object]:
        def hooked_moments(x: tf.Tensor, axes: Sequence[int], *args: object, **kw: object) -> object:
            layer = self._layer
            if layer is None or 0 not in axes:
                return moments(x, axes, *args, **kw)
            return self._marked_moments(layer.path, x, axes, keepdims=bool(kw.get("keepdims")))

        return hooked_moments

    def _marked_moments(self, layer: str, x: tf.Tensor, axes: Sequence[int], *, keepdims: bool) -> Moments:
        """As `tf.nn.moments` for what Keras gives it, which is float32 or wider, with both means marked.

        The variance is that about the marked mean, so that it is right about a larger batch's, too.
        """
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
        self.marks.append(TracedStatistic(layer=layer, node=marked.op.name, backward=backward, shape=shape))
        return marked
