"""Constants as nodes."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from strategies.ir.graph import DType, Node, TensorValue


def constant(name: str, value: int | Sequence[int], dtype: DType, device: str) -> Node:
    """A Const node holding integers: a scalar or a vector.

    Args:
        dtype: `int32` or `int64`.
    """
    proto = tf.make_tensor_proto(np.asarray(value, dtype=str(dtype)))
    attrs = {"dtype": dtype, "value": TensorValue(proto.SerializeToString())}
    return Node(name=name, op="Const", attrs=attrs, device=device)
