"""Attributes of nodes: plain values and TensorFlow's protos."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

# Generated from public .proto files; tf.compat.v1 does not export them by name.
from tensorflow.core.framework import attr_value_pb2, tensor_shape_pb2, types_pb2

from strategies.errors import GraphError
from strategies.ir.graph import Attr, AttrPlaceholder, DType, FunctionRef, OpaqueAttr, Shape, TensorValue

_DTYPES: Mapping[int, DType] = {
    number: DType(name.removeprefix("DT_").lower()) for name, number in types_pb2.DataType.items()
}
_NUMBERS: Mapping[str, int] = {dtype: number for number, dtype in _DTYPES.items()}


def dtype_number(dtype: DType) -> int:
    """Number of a type in TensorFlow's DataType enum.

    Raises:
        GraphError: TensorFlow has no such type.
    """
    try:
        return _NUMBERS[dtype]
    except KeyError:
        raise GraphError(
            f"dtype {str(dtype)!r}: TensorFlow has no such type; use its proto name without DT_"
        ) from None


def dtype_of(number: int) -> DType | None:
    """Type of a number in TensorFlow's DataType enum; None if unknown."""
    return _DTYPES.get(number)


def attrs_from_proto(attrs: Mapping[str, attr_value_pb2.AttrValue]) -> dict[str, Attr]:
    """Plain form of a proto's attributes."""
    return {name: attr_from_proto(value) for name, value in attrs.items()}


def fill_attrs(values: Mapping[str, attr_value_pb2.AttrValue], attrs: Mapping[str, Attr]) -> None:
    """Fill a proto's empty map of attributes (reading an entry creates it)."""
    for name, attr in attrs.items():
        fill_attr(values[name], attr)


def attr_from_proto(value: tf.compat.v1.AttrValue) -> Attr:
    """Plain form of an attribute's value; `OpaqueAttr` if there is none."""
    kind = value.WhichOneof("value")
    if kind == "list":
        attr = _list_attr(value.list)
    else:
        attr = _FROM_PROTO[kind](getattr(value, kind)) if kind in _FROM_PROTO else None
    return OpaqueAttr(value.SerializeToString(deterministic=True)) if attr is None else attr


def _list_attr(values: attr_value_pb2.AttrValue.ListValue) -> "Attr | None":
    fields = values.ListFields()
    if not fields:
        return ()
    if len(fields) > 1:
        return None
    field, items = fields[0]
    if field.name in {"s", "i", "f", "b"}:
        return tuple(items)
    plain: list[Attr] = []
    for attr in map(_FROM_PROTO[field.name], items):
        if attr is None:
            return None
        plain.append(attr)
    return tuple(plain)


def _shape(shape: tensor_shape_pb2.TensorShapeProto) -> Shape | None:
    if shape.unknown_rank:
        return None if shape.dim else Shape(None)
    if any(dim.name for dim in shape.dim):
        return None
    return Shape(tuple(dim.size for dim in shape.dim))


def _same(value: Attr) -> Attr:
    return value


# Values that have no plain form become None, and the whole attribute opaque.
_FROM_PROTO: "Mapping[str, Callable[[Any], Attr | None]]" = {
    "s": _same,
    "i": _same,
    "f": _same,
    "b": _same,
    "type": _DTYPES.get,
    "shape": _shape,
    "tensor": lambda tensor: TensorValue(tensor.SerializeToString(deterministic=True)),
    "func": lambda func: FunctionRef(func.name, attrs_from_proto(func.attr)),
    "placeholder": AttrPlaceholder,
}


def fill_attr(value: tf.compat.v1.AttrValue, attr: Attr) -> None:
    """Set an empty AttrValue.

    Raises:
        GraphError: an attribute cannot have a value of this kind.
    """
    if isinstance(attr, OpaqueAttr):
        value.ParseFromString(attr.proto)
    elif isinstance(attr, tuple):
        value.list.SetInParent()
        for item in attr:
            _add_item(value.list, item)
    else:
        field = _field(attr)
        if field in _MESSAGE_WRITERS:
            message = getattr(value, field)
            message.SetInParent()
            _MESSAGE_WRITERS[field](message, attr)
        else:
            setattr(value, field, _scalar(attr))


def _add_item(values: attr_value_pb2.AttrValue.ListValue, item: Attr) -> None:
    field = _field(item)
    if field in _MESSAGE_WRITERS:
        _MESSAGE_WRITERS[field](getattr(values, field).add(), item)
    else:
        getattr(values, field).append(_scalar(item))


def _field(attr: Attr) -> str:
    try:
        return _FIELDS[type(attr)]
    except KeyError:
        raise GraphError(
            f"attribute value {attr!r}: {type(attr).__name__} is no kind of attribute; "
            "strings are bytes, types are DType, lists are tuples"
        ) from None


def _scalar(attr: Attr) -> "Attr | int | str":
    if isinstance(attr, DType):
        return dtype_number(attr)
    return attr.name if isinstance(attr, AttrPlaceholder) else attr


def _write_shape(proto: tensor_shape_pb2.TensorShapeProto, shape: Shape) -> None:
    if shape.dims is None:
        proto.unknown_rank = True
        return
    for size in shape.dims:
        proto.dim.add().size = size


def _write_function(proto: attr_value_pb2.NameAttrList, ref: FunctionRef) -> None:
    proto.name = ref.name
    fill_attrs(proto.attr, ref.attrs)


_FIELDS: Mapping[type, str] = {
    bytes: "s",
    int: "i",
    float: "f",
    bool: "b",
    DType: "type",
    AttrPlaceholder: "placeholder",
    Shape: "shape",
    TensorValue: "tensor",
    FunctionRef: "func",
}

# Fields that are messages of their own; the others are set on the AttrValue itself.
_MESSAGE_WRITERS: Mapping[str, Callable[[Any, Any], None]] = {
    "shape": _write_shape,
    "tensor": lambda proto, tensor: proto.MergeFromString(tensor.proto),
    "func": _write_function,
}
