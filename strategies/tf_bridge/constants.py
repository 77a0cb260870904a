"""Constants as nodes."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import tensorflow as tf

from strategies.ir.graph import Attr, DType, Node, TensorValue


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


@lru_cache(maxsize=4096)
def _attrs(value: int | tuple[int, ...], dtype: DType) -> Mapping[str, Attr]:
    proto = tf.make_tensor_proto(np.asarray(value, dtype=str(dtype)))
    return {"dtype": dtype, "value": TensorValue(proto.SerializeToString())}
