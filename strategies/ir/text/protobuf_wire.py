"""Messages in the protobuf wire format, field by field, without TensorFlow."""

from collections.abc import Iterator


def fields(proto: bytes) -> Iterator[tuple[int, int | bytes]]:
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


def varints(data: bytes) -> Iterator[int]:
    """Packed numbers of any length."""
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
    """One field of a message."""
    if isinstance(value, int):
        return as_varint(number << 3) + as_varint(value % (1 << 64))
    return as_varint(number << 3 | 2) + as_varint(len(value)) + value


def as_varint(value: int) -> bytes:
    """A number of any length, as it is packed."""
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*written, value))
