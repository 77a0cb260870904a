"""Captured tensors and lookup tables as nodes; large constants are kept outside the graph."""

import gc
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

# Generated from a public .proto file; tf.compat.v1 does not export it by name.
from tensorflow.core.framework import tensor_pb2

from strategies.capture.tracing import with_effects
from strategies.errors import CaptureError
from strategies.ir.assembly.traced import TracedTable
from strategies.ir.graph import Graph, Node, TensorValue, node_slug
from strategies.ir.traversal import copy_nodes
from strategies.tf_bridge.attrs import dtype_of
from strategies.tf_bridge.graphdef import graph_from_graphdef

Array: TypeAlias = np.ndarray[Any, Any]
# A GraphDef holds 2 GB in all, and a graph is copied more often than initial values are.
MAX_CONSTANT_BYTES = 1 << 20


def constant_of(name: str, value: tf.Tensor) -> Node:
    """A Const node that holds an eager tensor's value."""
    dtype = dtype_of(value.dtype.as_datatype_enum)
    assert dtype is not None
    proto = tf.make_tensor_proto(value.numpy(), dtype=value.dtype)
    return Node(
        name=name, op="Const", attrs={"dtype": dtype, "value": TensorValue(proto.SerializeToString())}
    )


def is_large(value: tf.Tensor) -> bool:
    """True if an eager tensor is too large for a constant."""
    return bool(
        value.dtype != tf.string and value.dtype.size * value.shape.num_elements() > MAX_CONSTANT_BYTES
    )


def large_constants(graph: Graph) -> Mapping[str, Array]:
    """Const node → value, for constants too large to stay in the graph.

    Raises:
        CaptureError: a function of the library contains such a constant.
    """
    for function in graph.functions.values():
        for node in _large(function.nodes):
            raise CaptureError(
                f"train step: a loop, branch or nested function may hold {MAX_CONSTANT_BYTES} bytes of "
                f"constant, got more in {node.name!r}; make it a tf.Variable with trainable=False"
            )
    return {node.name: _value(node) for node in _large(graph.nodes)}


def _large(nodes: tuple[Node, ...]) -> Iterator[Node]:
    for node in nodes:
        value = node.attrs.get("value") if node.op == "Const" else None
        if isinstance(value, TensorValue) and len(value.proto) > MAX_CONSTANT_BYTES:
            if node.attrs["dtype"] == "string":
                raise CaptureError(
                    f"train step: a constant of strings may hold {MAX_CONSTANT_BYTES} bytes, got more in "
                    f"{node.name!r}; make it part of the dataset"
                )
            yield node


def _value(node: Node) -> Array:
    value = node.attrs["value"]
    assert isinstance(value, TensorValue)
    array: Array = tf.make_ndarray(tensor_pb2.TensorProto.FromString(value.proto))
    return array


# Resources that an initializer fills; the contents of a mutable table would be lost.
_REMADE = frozenset({"HashTableV2", "SummaryWriter"})


def recreated_table(placeholder: str, handle: tf.Tensor) -> TracedTable:
    """Nodes that create and initialise the resource of an eager handle.

    Args:
        placeholder: node of the handle in the trace.
    Raises:
        CaptureError: the resource has no known owner, or has contents that no initializer creates.
    """
    owner = _owner(handle)
    if owner is None:
        raise CaptureError(
            f"train step: captured resources must be variables or lookup tables, got {placeholder!r}; use "
            "variables by their methods and not by their handles alone, make iterators part of the dataset, "
            "and summary writers with experimental_trackable=True",
            node=placeholder,
        )
    handles: list[tf.Tensor] = []

    def make() -> None:
        # A table without a handle creates one, here in the graph, for its initializer.
        owner._resource_handle = None  # noqa: SLF001 - no public way; TrackableResource documents the two methods
        owner._initialize()  # noqa: SLF001
        handles.append(owner.resource_handle)

    try:
        concrete = tf.function(make, autograph=False).get_concrete_function()
    finally:
        owner._resource_handle = handle  # noqa: SLF001
    if handles[0].op.type not in _REMADE:
        raise CaptureError(
            f"train step: captured tables must not change, got {type(owner).__name__} {placeholder!r}; use "
            "tf.lookup.StaticHashTable, or a tf.Variable for what changes",
            node=placeholder,
        )
    constants = {i.op.name: constant_of(i.op.name, e) for e, i in concrete.graph.captures}
    graph = graph_from_graphdef(concrete.graph.as_graph_def())
    prefix = f"tables/{node_slug(placeholder)}/"
    nodes = copy_nodes([constants.get(node.name, node) for node in graph.nodes], prefix)
    return TracedTable(
        placeholder=placeholder,
        nodes=nodes,
        handle=prefix + handles[0].op.name,
        initializers=tuple(prefix + op.name for op in with_effects(concrete) if op.type not in _REMADE),
    )


def _owner(handle: tf.Tensor) -> tf.saved_model.experimental.TrackableResource | None:
    """Find the object that owns a resource; a handle does not refer to its table."""
    kind = tf.saved_model.experimental.TrackableResource
    for candidate in gc.get_objects():
        if issubclass(type(candidate), kind) and candidate.resource_handle is handle:
            return candidate
    return None
