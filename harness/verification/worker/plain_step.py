"""A workload's own step in plain TensorFlow, without the hooks of capture."""

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from harness.worker.variable_parts import Array
from strategies.capture.tracing import CapturableStep, arguments_of
from strategies.ir.graph import Attr, Graph, Node, TensorValue, producer
from strategies.ir.random_ops import draws_from_op
from strategies.ir.resource_uses import called
from strategies.ir.train_graph import TrainGraph
from strategies.ir.traversal import descendants, renamed_functions
from strategies.tf_bridge.graphdef import graph_from_graphdef

AnyStep: TypeAlias = CapturableStep | Callable[..., object] | keras.Model


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonDraws:
    """States of the random generators of Python and NumPy, whose numbers become constants of a trace."""

    of_python: tuple[Any, ...]
    of_numpy: dict[str, Any]

    @classmethod
    def now(cls) -> "PythonDraws":
        return cls(of_python=random.getstate(), of_numpy=np.random.get_state(legacy=False))

    def resume(self) -> None:
        random.setstate(self.of_python)
        np.random.set_state(self.of_numpy)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainStep:
    """A user's step, traced once.

    Attributes:
        concrete: traced function; its graph lists the variables that it uses.
        graph: the same graph, in our passes' form.
    """

    concrete: tf.types.experimental.ConcreteFunction
    graph: Graph
    _element_spec: object
    _function: Callable[..., object]

    def __call__(self, batch: Sequence[Array]) -> float | None:
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
        n_examples: examples in a batch; None for any number.
    """
    function = _function(step)
    specs = tf.nest.map_structure(lambda s: tf.TensorSpec((n_examples, *s.shape), s.dtype), element_spec)
    args, kwargs = arguments_of(function, specs)
    # The user's summaries shall contain only the run's own steps.
    with tf.summary.record_if(condition=False):
        concrete = function.get_concrete_function(*args, **kwargs)
    graph = graph_from_graphdef(concrete.graph.as_graph_def())
    return PlainStep(concrete=concrete, graph=graph, _element_spec=element_spec, _function=function)


@contextmanager
def _as_written() -> Iterator[None]:
    """Disable TensorFlow's graph optimizer for functions, as `Use.AS_WRITTEN` does for sessions.

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
    # Traced again, because an existing trace records summaries; and without XLA, which rounds differently
    # and draws other numbers.
    return tf.function(whole.python_function, autograph=getattr(whole, "_autograph", True))


def _trained_as_by_fit(model: keras.Model) -> Callable[[object], None]:
    """Training step of `model.fit`, without its logs, whose mean loss of all steps is also in a variable."""

    def train(batch: object) -> None:
        model.train_step(batch)

    return train


def _composed(step: CapturableStep) -> Callable[[object], tf.Tensor]:
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
    if isinstance(returned, Mapping):
        return returned.get("loss")
    if isinstance(returned, tuple | list):
        return returned[0] if returned else None
    return returned if isinstance(returned, tf.Tensor) else None


_SEEDS = frozenset(("seed", "seed2"))


def are_alike(one: PlainStep, other: PlainStep) -> bool:
    """True if two traces have equal operations, variables and captured constants.

    Edges are not compared.
    """
    return _operations(one.graph) == _operations(other.graph) and list(_captured(one)) == list(
        _captured(other)
    )


def _operations(graph: Graph) -> Counter[object]:
    """Number of operations of each kind, including those in functions.

    Names, whose numbers and scopes differ between traces, seeds that depend on positions in a trace, and
    private attributes are ignored.
    """
    functions = dict.fromkeys(graph.functions, "function")
    operations: Counter[object] = Counter()
    for node in chain(graph.nodes, *(function.nodes for function in graph.functions.values())):
        plain = renamed_functions(node, functions)
        attrs = frozenset(
            (name, value if isinstance(value, TensorValue) else repr(value))
            for name, value in plain.attrs.items()
            if not name.startswith("_") and name not in _SEEDS
        )
        operations[plain.op, len(node.inputs), attrs] += 1
    return operations


def _captured(step: PlainStep) -> Iterator[object]:
    """Variables by identity, and values of other tensors, that a trace captured from outside."""
    variables = {id(variable.handle) for variable in step.concrete.graph.variables}
    for tensor in step.concrete.captured_inputs:
        if id(tensor) in variables:
            yield id(tensor)
        elif tensor.dtype == tf.string:
            yield tensor.numpy().tolist()
        elif tensor.dtype not in (tf.resource, tf.variant):
            yield tensor.dtype, tensor.shape, tensor.numpy().tobytes()


_Seeds: TypeAlias = tuple[Attr, Attr]
_Path: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Drawing:
    function: str | None
    node: Node

    @property
    def place(self) -> tuple[str | None, str]:
        return self.function, self.node.name

    @property
    def seeds(self) -> _Seeds:
        return self.node.attrs.get("seed", 0), self.node.attrs.get("seed2", 0)


def with_seeds_of(step: TrainGraph, other: Graph) -> tuple[TrainGraph, tuple[str, ...]]:
    """Captured step with the random draws of another trace of it.

    Returns:
        The step, and its nodes whose draws still differ, without a seed or a counterpart.
    """
    own, others = dict(_drawing(step.graph)), dict(_drawing(other))
    seeds: dict[tuple[str | None, str], _Seeds] = {}
    unlike: dict[str, None] = {}
    for path, drawing in own.items():
        twin = others.get(path)
        twin_seeds = None if twin is None or twin.node.op != drawing.node.op else twin.seeds
        if (
            twin_seeds is None
            or not any(twin_seeds)
            or seeds.setdefault(drawing.place, twin_seeds) != twin_seeds
        ):
            unlike[path[0]] = None
    if all(seeds.get(drawing.place, drawing.seeds) == drawing.seeds for drawing in own.values()):
        return step, tuple(unlike)
    graph = step.graph
    functions = {
        name: replace(function, nodes=_seeded(function.nodes, name, seeds))
        for name, function in graph.functions.items()
    }
    seeded = replace(graph, nodes=_seeded(graph.nodes, None, seeds), functions=functions)
    return replace(step, graph=seeded), tuple(unlike)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Parts of a step that depend on random numbers, drawn in it or in an earlier step.

    Attributes:
        loss: True if the loss depends on them.
    """

    variables: frozenset[str]
    loss: bool


def drawn_by(step: TrainGraph, drawing: Collection[str]) -> Drawn:
    """Parts of a step that depend on the draws of some nodes.

    Args:
        drawing: names of these nodes.
    """
    users = {
        v.name: [
            n for n in step.graph.consumers.get(v.handle, ()) if v.handle in map(producer, n.data_inputs)
        ]
        for v in step.variables
    }
    reached: set[str] = set()
    nodes = descendants(step.graph, drawing, control=False)
    while True:
        # A node with a handle as input that depends on random draws may assign.
        new = {name for name, own in users.items() if any(n.name in nodes for n in own)} - reached
        if not new:
            return Drawn(variables=frozenset(reached), loss=producer(step.losses[0].tensor) in nodes)
        reached |= new
        readers = [n.name for name in new for n in users[name]]
        nodes |= descendants(step.graph, readers, control=False)


def _drawing(graph: Graph) -> Iterator[tuple[_Path, _Drawing]]:
    waiting: list[tuple[_Path, str | None, Sequence[Node]]] = [((), None, graph.nodes)]
    while waiting:
        path, function, nodes = waiting.pop()
        for node in nodes:
            if draws_from_op(node):
                yield (*path, node.name), _Drawing(function, node)
            for k, callee in enumerate(called(graph, node) if graph.functions else ()):
                if callee.name != function:
                    waiting.append(((*path, node.name, str(k)), callee.name, callee.nodes))


def _seeded(
    nodes: tuple[Node, ...], function: str | None, seeds: dict[tuple[str | None, str], _Seeds]
) -> tuple[Node, ...]:
    return tuple(
        replace(node, attrs={**node.attrs, "seed": pair[0], "seed2": pair[1]})
        if (pair := seeds.get((function, node.name))) is not None
        else node
        for node in nodes
    )
