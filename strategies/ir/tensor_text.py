"""A serialized TensorProto in a few words, read without TensorFlow."""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

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
_FIXED_VALS = {5: "<f4", 6: "<f8"}
_VARINT_VALS = frozenset({7, 10, 11, 16, 17})


@dataclass(slots=True)
class _Tensor:
    dtype: int = 0
    dims: tuple[int, ...] | None = ()
    content: bytes = b""
    values: list[object] = field(default_factory=list)


def tensor_text(proto: bytes) -> str:
    """`float<2,3> [1.0, …]`, all values when they are few; a digest where they are many or opaque.

    A final `…` says that the last value fills the rest of the shape.
    """
    tensor = _read(proto)
    name = _NUMPY_TYPES[tensor.dtype][0] if tensor.dtype in _NUMPY_TYPES else _OTHER_TYPES.get(tensor.dtype)
    heading = f"{name or f'type {tensor.dtype}'}{_dims(tensor.dims)}"
    if tensor.content and tensor.dtype in _NUMPY_TYPES:
        tensor.values = np.frombuffer(tensor.content, _NUMPY_TYPES[tensor.dtype][1]).tolist()
    n_elements = None if tensor.dims is None else math.prod(tensor.dims)
    if not tensor.values or len(tensor.values) > _MAX_VALUES:
        return heading if n_elements == 0 else f"{heading} sha256:{hashlib.sha256(proto).hexdigest()[:8]}"
    shown = [repr(value) for value in tensor.values]
    if n_elements is not None and len(shown) < n_elements:
        shown.append("…")
    return f"{heading} [{', '.join(shown)}]"


def tensor_integers(proto: bytes) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Static shape of a constant, and its values if it holds few integers; None for what is not known."""
    tensor = _read(proto)
    n_elements = None if tensor.dims is None else math.prod(tensor.dims)
    if tensor.dtype not in _INTEGERS or n_elements is None or n_elements > _MAX_VALUES:
        return tensor.dims, None
    if tensor.content:
        tensor.values = np.frombuffer(tensor.content, _NUMPY_TYPES[tensor.dtype][1]).tolist()
    values = [value for value in tensor.values if isinstance(value, int)] or [0]
    # TensorFlow leaves out what only repeats the last value.
    return tensor.dims, tuple(values + values[-1:] * n_elements)[:n_elements]


def _dims(dims: tuple[int, ...] | None) -> str:
    if dims is None:
        return "<unknown>"
    return f"<{','.join(map(str, dims))}>"


def _read(proto: bytes) -> _Tensor:
    tensor = _Tensor()
    for number, value in _fields(proto):
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
        words = np.array(list(_varints(value)), np.uint16)
        tensor.values += words.view(np.float16).tolist()
    elif number in _VARINT_VALS:
        tensor.values += [_number(tensor, varint) for varint in _varints(value)]


def _number(tensor: _Tensor, varint: int) -> object:
    if tensor.dtype == 10:
        return bool(varint)
    return varint - (1 << 64) if varint >> 63 and tensor.dtype != 23 else varint


def _read_dims(proto: bytes) -> tuple[int, ...] | None:
    dims = []
    for number, value in _fields(proto):
        if number == 3 and value:
            return None
        if number == 2 and isinstance(value, bytes):
            sizes = [
                size for field_number, size in _fields(value) if field_number == 1 and isinstance(size, int)
            ]
            dims.append(sizes[-1] if sizes else 0)
    return tuple(size - (1 << 64) if size >> 63 else size for size in dims)


def _fields(proto: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers and values of a message in the protobuf wire format; fixed widths as bytes."""
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


def _varints(data: bytes) -> Iterator[int]:
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
