"""Reads attributes of nodes and functions from a line of text."""

import ast
import re
from collections.abc import Callable, Mapping

from strategies.ir.graph import Attr, AttrPlaceholder, DType, FunctionRef, OpaqueAttr, Shape, TensorValue
from strategies.ir.text.line_reader import NAME, TYPE, Line
from strategies.ir.text.tensors import ELLIPSIS, tensor_proto

_ATTR_NAME = re.compile(r"[A-Za-z0-9_.\-]+")
_BYTES = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
_NUMBER = re.compile(r"-?(?:inf|nan|[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)(?![A-Za-z0-9_<])")
_LENGTH = re.compile(r"[0-9]{1,19}")


def parse_attrs(line: Line) -> dict[str, Attr]:
    """Attributes in braces."""

    def one() -> tuple[str, Attr]:
        name = line.match(_ATTR_NAME, "an attribute's name")
        line.skip("=")
        return name, _attr(line)

    attrs: dict[str, Attr] = {}
    for name, attr in line.skip("{").items("}", one):
        if name in attrs:
            raise line.error(f"each attribute once, and {name} is there already")
        attrs[name] = attr
    return attrs


def _attr(line: Line) -> Attr:
    for opening, read in _BY_OPENING.items():
        if line.takes(opening):
            return read(line)
    quoted = line.maybe(_BYTES)
    if quoted is not None:
        return _bytes(quoted)
    number = line.maybe(_NUMBER)
    if number is not None:
        return _number(number)
    dtype = line.match(TYPE, "an attribute")
    return TensorValue(_tensor(dtype, line)) if line.takes("<") else DType(dtype)


def _function_ref(line: Line) -> FunctionRef:
    name = line.match(NAME, "a function")
    return FunctionRef(name, parse_attrs(line) if line.sees("{") else {})


def _digest_of_bytes(line: Line) -> bytes:
    raise line.error("all bytes, not their digest (write the text with exact=True)")


_BY_OPENING: Mapping[str, Callable[[Line], Attr]] = {
    "[": lambda line: tuple(line.items("]", lambda: _attr(line))),
    "<": lambda line: Shape(_dims(line)),
    "&": _function_ref,
    "$": lambda line: AttrPlaceholder(line.match(_ATTR_NAME, "an attribute's name")),
    "opaque ": lambda line: OpaqueAttr(line.encoded()),
    "bytes(": _digest_of_bytes,
    "unset": lambda _: OpaqueAttr(b""),
    "tensor ": lambda line: TensorValue(line.encoded()),
    "True": lambda _: True,
    "False": lambda _: False,
}


def _bytes(quoted: str) -> bytes:
    value = ast.literal_eval(f"b{quoted}")
    assert isinstance(value, bytes)
    return value


def _number(text: str) -> int | float:
    return int(text) if re.fullmatch(r"-?[0-9]+", text) else float(text)


def _dims(line: Line) -> tuple[int, ...] | None:
    if line.takes("unknown>"):
        return None
    dims: list[int] = []
    while not line.takes(">"):
        if dims:
            line.skip(",")
        dims.append(-1 if line.takes("?") else int(line.match(_LENGTH, "a length")))
    return tuple(dims)


def _tensor(dtype: str, line: Line) -> bytes:
    dims = _dims(line)

    def one() -> object:
        if line.takes("True"):
            return True
        if line.takes("False"):
            return False
        if line.takes("b"):
            return _bytes(line.match(_BYTES, "bytes"))
        if line.takes(ELLIPSIS):
            return ...
        return _number(line.match(_NUMBER, "a value"))

    values: list[object] = []
    if line.takes(" "):
        if line.sees("sha256:"):
            raise line.error("all values, not their digest (write the text with exact=True)")
        values = list(line.skip("[").items("]", one))
    fills = bool(values) and values[-1] is ...
    try:
        return tensor_proto(dtype, dims, values[:-1] if fills else values, fills=fills)
    except ValueError as error:
        raise line.error(str(error)) from None
