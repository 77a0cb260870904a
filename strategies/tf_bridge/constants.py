"""Constants as nodes."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from strategies.ir.graph import Attr, DType, Node, Shape, TensorValue
from strategies.tf_bridge.attrs import dtype_number

Array: TypeAlias = np.ndarray[Any, Any]


def constant(name: str, value: int | Sequence[int], dtype: DType, device: str) -> Node:
    """A Const node holding integers: a scalar or a vector.

    Args:
        dtype: `int32` or `int64`.
    """
    return Node(
        name=name,
        op="Const",
        attrs=_attrs(value if isinstance(value, int) else tuple(value), dtype),
        device=device,
    )


def floating(name: str, value: float, dtype: DType, device: str) -> Node:
    """A Const node holding a floating scalar.

    Args:
        dtype: `half`, `bfloat16`, `float` or `double`.
    """
    proto = tf.make_tensor_proto(value, dtype=tf.as_dtype(dtype_number(dtype)))
    attrs: Mapping[str, Attr] = {"dtype": dtype, "value": TensorValue(proto.SerializeToString())}
    return Node(name=name, op="Const", attrs=attrs, device=device)


def constant_shape(node: Node) -> Shape | None:
    """The shape of a constant; None of any other node."""
    value = node.attrs.get("value")
    if node.op != "Const" or not isinstance(value, TensorValue):
        return None
    shape = tensor_pb2.TensorProto.FromString(value.proto).tensor_shape
    return Shape(tuple(each.size for each in shape.dim))


def constant_value(node: Node) -> Array | None:
    """The value of a constant; None of any other node."""
    value = node.attrs.get("value")
    if node.op != "Const" or not isinstance(value, TensorValue):
        return None
    array: Array = tf.make_ndarray(tensor_pb2.TensorProto.FromString(value.proto))
    return array


@lru_cache(maxsize=4096)
def _attrs(value: int | tuple[int, ...], dtype: DType) -> Mapping[str, Attr]:
    proto = tf.make_tensor_proto(np.asarray(value, dtype=str(dtype)))
    return {"dtype": dtype, "value": TensorValue(proto.SerializeToString())}
