"""Constants and their TensorProtos without TensorFlow, and protobuf messages that are declared here."""

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from numpy.typing import ArrayLike

from strategies.ir.graph import Attr, DType, Node, TensorValue, after


def message_classes(
    package: str, messages: Mapping[str, Mapping[str, tuple[int, str]]]
) -> Mapping[str, type[Any]]:
    """Classes of protobuf messages; they preserve fields that are not declared.

    Args:
        messages: message → field → number and type, as in a .proto file: `int32`, `Shape`, `repeated Dim`.
    """
    file = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for message, fields in messages.items():
        declared = file.message_type.add(name=message)
        for name, (number, kind) in fields.items():
            label, _, type_name = kind.rpartition(" ")
            field = declared.field.add(name=name, number=number)
            field.label = FieldDescriptorProto.Label.Value(f"LABEL_{(label or 'optional').upper()}")
            if type_name in messages:
                field.type_name = f".{package}.{type_name}"
            else:
                field.type = FieldDescriptorProto.Type.Value(f"TYPE_{type_name.upper()}")
    pool = DescriptorPool()
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}


Array: TypeAlias = np.ndarray[Any, Any]

TensorProto = message_classes(
    "stratbench.tensor",
    {
        "Dim": {"size": (1, "int64")},
        "Shape": {"dim": (2, "repeated Dim"), "unknown_rank": (3, "bool")},
        "Tensor": {
            "dtype": (1, "int32"),
            "tensor_shape": (2, "Shape"),
            "tensor_content": (4, "bytes"),
            "float_val": (5, "repeated float"),
            "double_val": (6, "repeated double"),
            "int_val": (7, "repeated int32"),
            "string_val": (8, "repeated bytes"),
            "scomplex_val": (9, "repeated float"),
            "int64_val": (10, "repeated int64"),
            "bool_val": (11, "repeated bool"),
            "dcomplex_val": (12, "repeated double"),
            "half_val": (13, "repeated int32"),
            "uint32_val": (16, "repeated uint32"),
            "uint64_val": (17, "repeated uint64"),
        },
    },
)["Tensor"]


@dataclass(frozen=True, slots=True)
class ElementType:
    """Type of a tensor's elements.

    Attributes:
        number: number in TensorFlow's DataType enum.
        values: field of a TensorProto that holds single values.
        stored: NumPy type of that field's items, which have the bytes of the elements.
    """

    name: str
    number: int
    numpy: Any
    values: str
    stored: Any = None

    @property
    def items(self) -> Any:  # noqa: ANN401 - NumPy's own scalar types and those of ml_dtypes
        return self.numpy if self.stored is None else self.stored


_TYPES = (
    ElementType("float", 1, np.float32, "float_val"),
    ElementType("double", 2, np.float64, "double_val"),
    ElementType("int32", 3, np.int32, "int_val"),
    ElementType("uint8", 4, np.uint8, "int_val"),
    ElementType("int16", 5, np.int16, "int_val"),
    ElementType("int8", 6, np.int8, "int_val"),
    ElementType("string", 7, np.object_, "string_val"),
    ElementType("complex64", 8, np.complex64, "scomplex_val", np.float32),
    ElementType("int64", 9, np.int64, "int64_val"),
    ElementType("bool", 10, np.bool_, "bool_val"),
    ElementType("bfloat16", 14, ml_dtypes.bfloat16, "half_val", np.uint16),
    ElementType("uint16", 17, np.uint16, "int_val"),
    ElementType("complex128", 18, np.complex128, "dcomplex_val", np.float64),
    ElementType("half", 19, np.float16, "half_val", np.uint16),
    ElementType("uint32", 22, np.uint32, "uint32_val"),
    ElementType("uint64", 23, np.uint64, "uint64_val"),
)
TYPES_BY_NAME: Mapping[str, ElementType] = {element_type.name: element_type for element_type in _TYPES}
_TYPES_BY_NUMBER = {element_type.number: element_type for element_type in _TYPES}

ELLIPSIS = "…"
MAX_SHOWN = 8
_MAX_STRING = 40
_SHOWN_AS_DIGEST = frozenset({"bfloat16", "complex64", "complex128"})
_WITHOUT_ELEMENTS = {20: "resource", 21: "variant"}


def tensor_text(proto: bytes) -> str:
    """`float<2,3> [1.0, …]` with few values, else a digest; a final `…` repeats the last value."""
    tensor = TensorProto.FromString(proto)
    element = _TYPES_BY_NUMBER.get(tensor.dtype)
    name = element.name if element else _WITHOUT_ELEMENTS.get(tensor.dtype, f"type {tensor.dtype}")
    dims = tensor_dims(tensor)
    heading = f"{name}<{'unknown' if dims is None else ','.join(map(str, dims))}>"
    n_elements = None if dims is None else math.prod(dims)
    values = None if name in _SHOWN_AS_DIGEST else tensor_values(tensor)
    if values is None or not 0 < values.size <= MAX_SHOWN:
        return heading if n_elements == 0 else f"{heading} sha256:{hashlib.sha256(proto).hexdigest()[:8]}"
    texts = [_value_text(value) for value in values.tolist()]
    if n_elements is not None and len(texts) < n_elements:
        texts.append(ELLIPSIS)
    return f"{heading} [{', '.join(texts)}]"


def _value_text(value: object) -> str:
    if isinstance(value, bytes) and len(value) > _MAX_STRING:
        return repr(f"{len(value)} bytes")
    return repr(value)


def tensor_dims(tensor: Any) -> tuple[int, ...] | None:  # noqa: ANN401 - a TensorProto
    """Dimensions of a TensorProto; None if their number is unknown."""
    shape = tensor.tensor_shape
    return None if shape.unknown_rank else tuple(dim.size for dim in shape.dim)


def tensor_values(tensor: Any) -> Array | None:  # noqa: ANN401 - a TensorProto
    """Flat values that a TensorProto stores, without repeats of the last; None for unknown types."""
    element = _TYPES_BY_NUMBER.get(tensor.dtype)
    if element is None:
        return None
    if tensor.tensor_content:
        return np.frombuffer(tensor.tensor_content, element.numpy)
    values: Array = np.array(getattr(tensor, element.values), element.items).view(element.numpy)
    return values


def tensor_proto(dtype: str, value: ArrayLike) -> bytes:
    """TensorProto of a scalar or an array; with numbers in TensorFlow's byte layout."""
    element = TYPES_BY_NAME[dtype]
    array = np.array(value, element.numpy)
    tensor = TensorProto(dtype=element.number)
    tensor.tensor_shape.SetInParent()
    for size in array.shape:
        tensor.tensor_shape.dim.add(size=size)
    if array.size > 1 and dtype != "string":
        tensor.tensor_content = array.tobytes()
    else:
        getattr(tensor, element.values).extend(array.reshape(-1).view(element.items).tolist())
    return bytes(tensor.SerializeToString(deterministic=True))


def const(
    name: str,
    dtype: str,
    value: ArrayLike,
    *,
    waits: Iterable[str] = (),
    device: str = "",
    attrs: Mapping[str, Attr] | None = None,
) -> Node:
    """A Const of a scalar or an array; `attrs` are further attributes."""
    tensor = TensorValue(tensor_proto(dtype, value))
    attrs = {"dtype": DType(dtype), "value": tensor, **(attrs or {})}
    return Node(name=name, op="Const", inputs=after(waits), attrs=attrs, device=device)


def constant_dims(node: Node) -> tuple[int, ...] | None:
    """Sizes of a Const, whose value may be large; None for other nodes."""
    tensor = _tensor_of(node)
    return None if tensor is None else tensor_dims(tensor)


def _tensor_of(node: Node) -> Any:  # noqa: ANN401 - a TensorProto, or None
    value = node.attrs.get("value")
    return (
        TensorProto.FromString(value.proto) if node.op == "Const" and isinstance(value, TensorValue) else None
    )


def constant_array(node: Node) -> Array | None:
    """Value of a Const; None for other nodes and types without elements."""
    tensor = _tensor_of(node)
    if tensor is None:
        return None
    dims, values = tensor_dims(tensor), tensor_values(tensor)
    if dims is None or values is None:
        return None
    if values.size == math.prod(dims):
        return values.reshape(dims)
    filled = np.zeros(math.prod(dims), values.dtype)
    # TensorFlow omits trailing repeats of the last value.
    filled[: values.size], filled[values.size :] = values, values[-1] if values.size else 0
    return filled.reshape(dims)
