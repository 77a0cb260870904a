"""Values that a trace holds as constants: small ones stay in the graph, large ones travel beside it."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from strategies.errors import CaptureError
from strategies.ir.graph import Graph, Node, TensorValue
from strategies.tf_bridge.attrs import dtype_of
from strategies.tf_bridge.constants import constant_value

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
    """Whether an eager tensor is too large for a constant."""
    return bool(
        value.dtype != tf.string and value.dtype.size * value.shape.num_elements() > MAX_CONSTANT_BYTES
    )


def large_constants(graph: Graph) -> Mapping[str, Array]:
    """Const node → value, for those of a graph that are too large to stay.

    Raises:
        CaptureError: when a function of the library holds such a constant, which cannot be replaced there.
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
    value = constant_value(node)
    assert value is not None
    return value
