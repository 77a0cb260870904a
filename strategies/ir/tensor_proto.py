"""Serialized TensorProtos, written, read and shown without TensorFlow."""

import dataclasses
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from strategies.ir.graph import Attr, DType, Node, TensorValue, after


def fields(proto: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers and values of a message; fixed widths as bytes."""
    at = 0
    while at < len(proto):
        tag, at = _varint(proto, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(proto, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            length, at = _varint(proto, at)
        else:
            length = 8 if kind == 1 else 4
        yield tag >> 3, proto[at : at + length]
        at += length


def varints(data: bytes) -> Iterator[int]:
    """Packed varints."""
    at = 0
    while at < len(data):
        value, at = _varint(data, at)
        yield value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def field(number: int, value: int | bytes) -> bytes:
    """One encoded field."""
    if isinstance(value, int):
        return as_varint(number << 3) + as_varint(value % (1 << 64))
    return as_varint(number << 3 | 2) + as_varint(len(value)) + value


def as_varint(value: int) -> bytes:
    """A number as a varint."""
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*written, value))


ELLIPSIS = "…"
_MAX_VALUES = 8

# Numbers of TensorFlow's DataType enum, for types whose values numpy can show.
_NUMPY_TYPES = {
    1: ("float", "<f4"),
    2: ("double", "<f8"),
    3: ("int32", "<i4"),
    4: ("uint8", "u1"),
    5: ("int16", "<i2"),
    6: ("int8", "i1"),
    9: ("int64", "<i8"),
    10: ("bool", "?"),
    17: ("uint16", "<u2"),
    19: ("half", "<f2"),
    22: ("uint32", "<u4"),
    23: ("uint64", "<u8"),
}
_INTEGERS = frozenset({3, 9})
_OTHER_TYPES = {7: "string", 8: "complex64", 14: "bfloat16", 18: "complex128", 20: "resource", 21: "variant"}

# Fields of TensorProto.
_DTYPE, _SHAPE, _CONTENT, _STRING_VAL, _HALF_VAL = 1, 2, 4, 8, 13
_STRING = 7
_FIXED_VALS = {5: "<f4", 6: "<f8"}
_VARINT_VALS = frozenset({7, 10, 11, 16, 17})
# Number of a type → the field of its values.
_VALUE_FIELDS = {1: 5, 2: 6, 3: 7, 4: 7, 5: 7, 6: 7, 9: 10, 10: 11, 17: 7, 19: 13, 22: 16, 23: 17}


@dataclass(slots=True)
class _Tensor:
    dtype: int = 0
    dims: tuple[int, ...] | None = ()
    content: bytes = b""
    values: list[object] = dataclasses.field(default_factory=list)

    def all_values(self) -> list[object]:
        if self.content and self.dtype in _NUMPY_TYPES:
            return list(np.frombuffer(self.content, _NUMPY_TYPES[self.dtype][1]).tolist())
        return self.values


def tensor_text(proto: bytes) -> str:
    """`float<2,3> [1.0, …]` with few values, else a digest; a final `…` repeats the last value."""
    tensor = _read(proto)
    name = _NUMPY_TYPES[tensor.dtype][0] if tensor.dtype in _NUMPY_TYPES else _OTHER_TYPES.get(tensor.dtype)
    heading = f"{name or f'type {tensor.dtype}'}{_dims(tensor.dims)}"
    n_elements = None if tensor.dims is None else math.prod(tensor.dims)
    values = tensor.all_values()
    if not values or len(values) > _MAX_VALUES:
        return heading if n_elements == 0 else f"{heading} sha256:{hashlib.sha256(proto).hexdigest()[:8]}"
    shown = [repr(value) for value in values]
    if n_elements is not None and len(shown) < n_elements:
        shown.append(ELLIPSIS)
    return f"{heading} [{', '.join(shown)}]"


def tensor_proto(
    name: str, dims: tuple[int, ...] | None, values: Sequence[object], *, fills: bool = False
) -> bytes:
    """TensorProto of what `tensor_text` shows.

    Args:
        fills: the last value fills the rest of the shape.
    Raises:
        ValueError: values, type and shape do not fit.
    """
    numbers = {**{known: number for number, (known, _) in _NUMPY_TYPES.items()}, "string": _STRING}
    if name not in numbers:
        raise ValueError(f"a type with values ({', '.join(numbers)}), got {name}")
    dtype = numbers[name]
    n_elements = 0 if dims is None else math.prod(dims)
    if (
        dims is None
        or max((n_elements, *dims)) >= 1 << 63
        or (len(values) != n_elements and not (fills and values))
    ):
        raise ValueError(f"{n_elements} values for the shape, got {len(values)}")
    proto = field(_DTYPE, dtype) + field(_SHAPE, b"".join(field(2, field(1, size)) for size in dims))
    if not all(_is_of(name, value) for value in values):
        raise ValueError(f"values of {name}, got {', '.join(map(repr, values))}")
    if dtype == _STRING:
        return proto + b"".join(field(_STRING_VAL, value) for value in values if isinstance(value, bytes))
    exact = _exactly(name, values, _NUMPY_TYPES[dtype][1])
    if fills or len(values) == 1:  # as TensorFlow writes them
        return proto + _typed_values(dtype, exact.tolist())
    return proto + (field(_CONTENT, exact.tobytes()) if values else b"")


def _is_of(name: str, value: object) -> bool:
    if name == "string":
        return isinstance(value, bytes)
    if name == "bool" or isinstance(value, bool):
        return name == "bool" and isinstance(value, bool)
    return isinstance(value, int | float if name in ("float", "double", "half") else int)


def _exactly(name: str, values: Sequence[object], numpy_type: str) -> np.ndarray[Any, Any]:
    try:
        with np.errstate(over="raise"):
            return np.array(values, numpy_type)
    except (OverflowError, FloatingPointError) as error:
        raise ValueError(f"values of {name} ({error})") from error


def const(
    name: str,
    dtype: str,
    dims: tuple[int, ...],
    values: Sequence[object],
    *,
    waits: Iterable[str] = (),
    device: str = "",
    attrs: Mapping[str, Attr] | None = None,
) -> Node:
    """A Const of these values; `attrs` are further attributes."""
    value = TensorValue(tensor_proto(dtype, dims, values))
    return Node(
        name=name,
        op="Const",
        inputs=after(waits),
        attrs={"dtype": DType(dtype), "value": value, **(attrs or {})},
        device=device,
    )


def tensor_integers(proto: bytes) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Static shape of a constant, and its values if it holds few integers; None if unknown."""
    tensor = _read(proto)
    n_elements = None if tensor.dims is None else math.prod(tensor.dims)
    if tensor.dtype not in _INTEGERS or n_elements is None or n_elements > _MAX_VALUES:
        return tensor.dims, None
    values = [value for value in tensor.all_values() if isinstance(value, int)] or [0]
    # TensorFlow leaves out what only repeats the last value.
    return tensor.dims, tuple(values + values[-1:] * n_elements)[:n_elements]


def _dims(dims: tuple[int, ...] | None) -> str:
    if dims is None:
        return "<unknown>"
    return f"<{','.join(map(str, dims))}>"


def _read(proto: bytes) -> _Tensor:
    tensor = _Tensor()
    for number, value in fields(proto):
        if isinstance(value, bytes):
            _read_bytes(tensor, number, value)
        elif number == _DTYPE:
            tensor.dtype = value
        elif number in _VARINT_VALS:
            tensor.values.append(_number(tensor, value))
    return tensor


def _read_bytes(tensor: _Tensor, number: int, value: bytes) -> None:
    if number == _SHAPE:
        tensor.dims = _read_dims(value)
    elif number == _CONTENT:
        tensor.content = value
    elif number == _STRING_VAL:
        tensor.values.append(value if len(value) <= 40 else f"{len(value)} bytes")
    elif number in _FIXED_VALS:
        tensor.values += np.frombuffer(value, _FIXED_VALS[number]).tolist()
    elif number == _HALF_VAL and tensor.dtype == 19:
        words = np.array(list(varints(value)), np.uint16)
        tensor.values += words.view(np.float16).tolist()
    elif number in _VARINT_VALS:
        tensor.values += [_number(tensor, varint) for varint in varints(value)]


def _number(tensor: _Tensor, varint: int) -> object:
    if tensor.dtype == 10:
        return bool(varint)
    return varint - (1 << 64) if varint >> 63 and tensor.dtype != 23 else varint


def _read_dims(proto: bytes) -> tuple[int, ...] | None:
    dims = []
    for number, value in fields(proto):
        if number == 3 and value:
            return None
        if number == 2 and isinstance(value, bytes):
            sizes = [
                size for field_number, size in fields(value) if field_number == 1 and isinstance(size, int)
            ]
            dims.append(sizes[-1] if sizes else 0)
    return tuple(size - (1 << 64) if size >> 63 else size for size in dims)


def _typed_values(dtype: int, values: Sequence[object]) -> bytes:
    field_number = _VALUE_FIELDS[dtype]
    if field_number in _FIXED_VALS:
        return field(field_number, np.array(values, _FIXED_VALS[field_number]).tobytes())
    if field_number == _HALF_VAL:
        words = np.array(values, np.float16).view(np.uint16).tolist()
    else:
        words = [int(value) % (1 << 64) for value in values if isinstance(value, int)]
    return field(field_number, b"".join(map(as_varint, words)))
