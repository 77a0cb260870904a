"""Snippets: TensorFlow functions traced once and spliced into graphs many times."""

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import tensorflow as tf

from strategies.errors import GraphError
from strategies.ir.graph import DType, Graph, Node, Shape, producer, tensor
from strategies.ir.traversal import COLOCATION_ATTR, copy_nodes
from strategies.tf_bridge.attrs import dtype_number, dtype_of
from strategies.tf_bridge.graphdef import graph_from_graphdef, serialize_graph

# Control flow v1 or v2 is a setting of the process, not of a graph.
_tracing = threading.Lock()
_UNKNOWN = Shape(None)


class SnippetError(GraphError):
    """A function that cannot be traced, or a splice with the wrong inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Type and static shape of an input; unknown shape by default."""

    dtype: DType
    shape: Shape = _UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """A traced function.

    Attributes:
        nodes: nodes without the placeholders of the inputs.
        inputs: names of the inputs' placeholders, in order.
        outputs: flat tensor references; `^node` for a returned operation.
        sources: names of nodes that read no other node of the snippet.
    """

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sources: frozenset[str]

    def splice(
        self, prefix: str, inputs: Sequence[str], *, device: str = "", control: Sequence[str] = ()
    ) -> tuple[tuple[Node, ...], tuple[str, ...]]:
        """Copy the nodes under a prefix, with these inputs; return them and the references of the outputs.

        Args:
            inputs: tensor references, one per placeholder.
            device: device of nodes that the function does not place itself.
            control: nodes to run before every node of the snippet; an input that is returned unchanged waits
                for none.
        Raises:
            SnippetError: the number of inputs differs from the function's.
        """
        if len(inputs) != len(self.inputs):
            raise SnippetError(
                f"snippet {self.name}: takes {len(self.inputs)} inputs, got {len(inputs)}; "
                "pass one reference for each"
            )
        rewire = dict(zip(self.inputs, inputs, strict=True))
        rewire |= {f"^{name}": f"^{producer(ref)}" for name, ref in rewire.items()}
        nodes = copy_nodes(self.nodes, prefix, rewire=rewire, device=lambda node: node.device or device)
        if control:
            nodes = tuple(
                copy.waiting_for(*control) if original.name in self.sources else copy
                for original, copy in zip(self.nodes, nodes, strict=True)
            )
        return nodes, tuple(rewire.get(ref) or _prefixed(prefix, ref) for ref in self.outputs)


def _prefixed(prefix: str, ref: str) -> str:
    return f"^{prefix}{ref[1:]}" if ref[0] == "^" else prefix + ref


def trace(fn: Callable[..., object], specs: tuple[TensorSpec, ...], **static: Hashable) -> Snippet:
    """Trace a TensorFlow function, once per combination of function, specs and static arguments.

    Tracing uses TensorFlow 1 control flow: library functions would start the eager context, and a worker must
    have none before its server starts.

    Args:
        fn: function of one tensor per spec, and of the static arguments by name; returns tensors or
            operations.
        static: static arguments, hashable.
    Raises:
        SnippetError: the function makes library functions (`tf.function`) or returns other values.
    """
    # Types are part of the key because 1, 1.0 and True are equal.
    return _trace(fn, specs, tuple((name, type(static[name]), static[name]) for name in sorted(static)))


@lru_cache(maxsize=4096)
def _trace(
    fn: Callable[..., object], specs: tuple[TensorSpec, ...], static: tuple[tuple[str, type, Hashable], ...]
) -> Snippet:
    name = getattr(fn, "__qualname__", repr(fn))
    with tf.Graph().as_default() as built, first_control_flow():
        placeholders = [_placeholder(f"input_{i}", spec) for i, spec in enumerate(specs)]
        results = tf.nest.flatten(fn(*placeholders, **{key: value for key, _, value in static}))
        outputs = tuple(_output(name, result) for result in results)
    graph = graph_from_graphdef(built.as_graph_def())
    if graph.functions:
        raise SnippetError(
            f"snippet {name}: is one flat graph, got library function {min(graph.functions)!r}; "
            "call plain Python functions instead of tf.function"
        )
    inputs = tuple(placeholder.op.name for placeholder in placeholders)
    # A snippet is on one device as a whole; branches would choose the device of an input's placeholder.
    nodes = tuple(node.without_attrs(COLOCATION_ATTR) for node in graph.nodes if node.name not in inputs)
    own = {node.name for node in nodes}
    sources = frozenset(node.name for node in nodes if own.isdisjoint(map(producer, node.inputs)))
    return Snippet(name=name, nodes=nodes, inputs=inputs, outputs=outputs, sources=sources)


def _placeholder(name: str, spec: TensorSpec) -> tf.Tensor:
    dims = spec.shape.dims
    shape = None if dims is None else [None if size < 0 else size for size in dims]
    return tf.compat.v1.placeholder(tf.as_dtype(dtype_number(spec.dtype)), shape, name)


@contextmanager
def first_control_flow() -> Iterator[None]:
    """Build branches and loops as TensorFlow 1 nodes inside the context."""
    with _tracing:
        enabled = tf.compat.v1.control_flow_v2_enabled()
        tf.compat.v1.disable_control_flow_v2()
        try:
            yield
        finally:
            if enabled:
                tf.compat.v1.enable_control_flow_v2()


def _output(name: str, result: object) -> str:
    if isinstance(result, tf.Operation):
        return f"^{result.name}"
    if isinstance(result, tf.Tensor) and result.graph is tf.compat.v1.get_default_graph():
        return tensor(result.op.name, result.value_index)
    raise SnippetError(
        f"snippet {name}: returns tensors or operations of its own graph, got {type(result).__name__}; "
        "convert values with tf.constant"
    )


def static_specs(graph: Graph) -> Mapping[str, TensorSpec]:
    """Types and static shapes of a graph's tensors, as TensorFlow infers them."""
    bare = graph.with_nodes(node.changed(device="") if node.device else node for node in graph.nodes)
    with tf.Graph().as_default() as imported:
        definition = tf.compat.v1.GraphDef.FromString(serialize_graph(bare))
        tf.import_graph_def(definition, name="")
        return {
            tensor(operation.name, place): _spec(output)
            for operation in imported.get_operations()
            for place, output in enumerate(operation.outputs)
        }


def _spec(output: tf.Tensor) -> TensorSpec:
    dtype = dtype_of(output.dtype.as_datatype_enum) or DType("invalid")
    if output.shape.rank is None:
        return TensorSpec(dtype=dtype)
    dims = tuple(-1 if size is None else size for size in output.shape.as_list())
    return TensorSpec(dtype=dtype, shape=Shape(dims))
