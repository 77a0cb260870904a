"""Sizes of tensors in elements and bytes."""

import math
from collections.abc import Sequence

_BYTES = {
    **dict.fromkeys(("bool", "int8", "uint8", "qint8", "quint8", "float8_e5m2", "float8_e4m3fn"), 1),
    **dict.fromkeys(("half", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("float", "int32", "uint32", "qint32"), 4),
    **dict.fromkeys(("double", "int64", "uint64", "complex64"), 8),
    "complex128": 16,
}


def element_bytes(dtype: str) -> int:
    """Bytes of one element; 0 for types without a fixed size (strings, resources)."""
    return _BYTES.get(dtype, 0)


def n_elements(shape: Sequence[int]) -> int:
    """Elements of a tensor of this shape; a scalar has one, a shape with an unknown length counts as none."""
    return 0 if min(shape, default=0) < 0 else math.prod(shape)
