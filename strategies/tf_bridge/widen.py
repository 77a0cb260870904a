"""Double for every floating type, in every form: attributes, constants, serialized leftovers."""

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

# Generated from public .proto files; tf.compat.v1 does not export them by name.
from tensorflow.core.framework import full_type_pb2, tensor_pb2

from strategies.ir.graph import Attr, DType, FunctionRef, TensorValue
from strategies.tf_bridge.attrs import dtype_number, dtype_of

_WIDE = {
    "half": DType("double"),
    "bfloat16": DType("double"),
    "float": DType("double"),
    "complex64": DType("complex128"),
}
_WIDE |= {f"{narrow}_ref": DType(f"{wide}_ref") for narrow, wide in _WIDE.items()}

# The same by number, for the two enums in which protos say types.
_WIDE_NUMBERS: Mapping[str, Mapping[int, int]] = {
    "tensorflow.DataType": {
        dtype_number(DType(narrow)): dtype_number(wide) for narrow, wide in _WIDE.items()
    },
    "tensorflow.FullTypeId": {
        full_type_pb2.TFT_HALF: full_type_pb2.TFT_DOUBLE,
        full_type_pb2.TFT_BFLOAT16: full_type_pb2.TFT_DOUBLE,
        full_type_pb2.TFT_FLOAT: full_type_pb2.TFT_DOUBLE,
        full_type_pb2.TFT_COMPLEX64: full_type_pb2.TFT_COMPLEX128,
    },
}

_M = TypeVar("_M", bound=Message)


def widen(dtype: DType) -> DType:
    """The type that tensors of this type have after the rewrite; the same for types that are not floating."""
    return _WIDE.get(dtype, dtype)


def widen_attrs(attrs: Mapping[str, Attr]) -> Mapping[str, Attr]:
    """Attributes with double for every floating type in them; the same object when there is none."""
    changed = {name: wide for name, attr in attrs.items() if (wide := _widen_attr(attr)) is not attr}
    return {**attrs, **changed} if changed else attrs


def _widen_attr(attr: Attr) -> Attr:
    wide: Attr = attr
    if isinstance(attr, DType):
        wide = widen(attr)
    elif isinstance(attr, TensorValue):
        wide = _widen_tensor(attr)
    elif isinstance(attr, tuple):
        items = tuple(map(_widen_attr, attr))
        wide = attr if all(a is b for a, b in zip(items, attr, strict=True)) else items
    elif isinstance(attr, FunctionRef):
        bound = widen_attrs(attr.attrs)
        wide = attr if bound is attr.attrs else FunctionRef(attr.name, bound)
    return wide


def _widen_tensor(value: TensorValue) -> TensorValue:
    proto = tensor_pb2.TensorProto.FromString(value.proto)
    dtype = dtype_of(proto.dtype)
    if dtype is None or widen(dtype) == dtype:
        return value
    wide = tf.as_dtype(dtype_number(widen(dtype)))
    result = tensor_pb2.TensorProto(dtype=wide.as_datatype_enum, tensor_shape=proto.tensor_shape)
    # A proto with fewer values than elements repeats the last one; it stays as short as it was.
    if proto.tensor_content:
        values = np.frombuffer(proto.tensor_content, tf.as_dtype(proto.dtype).as_numpy_dtype)
        result.tensor_content = values.astype(wide.as_numpy_dtype).tobytes()
    elif proto.half_val:
        words = np.array(proto.half_val, np.uint16)
        result.double_val.extend(
            words.view(tf.as_dtype(proto.dtype).as_numpy_dtype).astype(np.float64).tolist()
        )
    else:
        result.double_val.extend(proto.float_val)
        result.dcomplex_val.extend(proto.scomplex_val)
    return TensorValue(result.SerializeToString(deterministic=True))


def widen_extra(data: bytes, kind: type[_M]) -> bytes:
    """Serialized leftovers with double for every floating type, and full types to match."""
    if not data:
        return data
    message = kind.FromString(data)
    return message.SerializeToString(deterministic=True) if _widen_message(message) else data


def _widen_message(message: Message) -> bool:
    """Widen every type in a message; whether there was one."""
    widened = [
        _widen_types(message, described, value)
        if described.enum_type is not None
        else _widen_children(described, value)
        for described, value in message.ListFields()
    ]
    return any(widened)


def _widen_children(described: FieldDescriptor, value: Any) -> bool:  # noqa: ANN401 - whatever a proto's field holds
    if described.message_type is None:
        return False
    if described.message_type.GetOptions().map_entry:
        children = [child for child in value.values() if isinstance(child, Message)]
    else:
        children = [value] if isinstance(value, Message) else list(value)
    widened = [_widen_message(child) for child in children]
    return any(widened)


def _widen_types(message: Message, described: FieldDescriptor, value: Any) -> bool:  # noqa: ANN401 - see above
    wide = _WIDE_NUMBERS.get(described.enum_type.full_name, {}) if described.enum_type else {}
    if isinstance(value, int):
        if value not in wide:
            return False
        setattr(message, described.name, wide[value])
        return True
    places = [i for i, number in enumerate(value) if number in wide]
    for i in places:
        value[i] = wide[value[i]]
    return bool(places)
