"""Widest types that an op can compute in, up to double."""

from collections.abc import Mapping

# Generated from a public .proto file; tf.compat.v1 does not export it by name.
from tensorflow.core.framework import op_def_pb2

from strategies.ir.graph import Attr, DType
from strategies.tf_bridge.op_types import takes
from strategies.tf_bridge.widen import widen, widen_attrs

_FLOAT = DType("float")


def widest_attrs(op: str, op_def: op_def_pb2.OpDef, attrs: Mapping[str, Attr]) -> Mapping[str, Attr]:
    """Attributes in double as far as the op can work in it."""
    wide = widen_attrs(attrs)
    narrow: dict[str, Attr] = {}
    for attr_def in op_def.attr:
        name, attr = attr_def.name, attrs.get(attr_def.name)
        if isinstance(attr, DType):
            narrow[name] = _widest(op, name, attr)
        elif isinstance(attr, tuple) and attr_def.type == "list(type)":
            narrow[name] = tuple(
                _widest(op, name, item) if isinstance(item, DType) else item for item in attr
            )
    narrow = {name: attr for name, attr in narrow.items() if attr != wide[name]}
    return {**wide, **narrow} if narrow else wide


def _widest(op: str, attr: str, dtype: DType) -> DType:
    """Double where the op takes it, otherwise the widest that it does."""
    wide = widen(dtype)
    if wide == dtype or takes(op, attr, wide):
        return wide
    return _FLOAT if wide == "double" and takes(op, attr, _FLOAT) else dtype
