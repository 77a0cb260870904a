"""Graphs of texts, and texts without digests: `from_text(exact_text(graph)) == graph`."""

import ast
import base64
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np

from strategies.errors import GraphError
from strategies.ir.graph import (
    Arg,
    Attr,
    AttrPlaceholder,
    DType,
    Function,
    FunctionRef,
    Graph,
    Node,
    OpaqueAttr,
    Shape,
    TensorValue,
)
from strategies.ir.tensor_proto import (
    ELLIPSIS,
    MAX_SHOWN,
    TYPES_BY_NAME,
    TensorProto,
    tensor_dims,
    tensor_proto,
    tensor_values,
)
from strategies.ir.text import TextWriter

Item = TypeVar("Item")

NAME = re.compile(r"[A-Za-z0-9_.<][A-Za-z0-9_.\\/<>\-]*")
TYPE = re.compile(r"[a-z]+[a-z0-9_]*")
_BASE64 = re.compile(r"[A-Za-z0-9+/=]*")


class Line:
    """One line, read from left to right."""

    def __init__(self, line: str, number: int) -> None:
        self._line, self._number, self._at = line, number, 0

    def error(self, wanted: str) -> GraphError:
        """Error to raise for an unexpected token."""
        rest = self._line[self._at :]
        return GraphError(f"line {self._number}: expected {wanted}, got {rest[:60]!r}")

    def sees(self, token: str) -> bool:
        """Return True if the next token is this one."""
        return self._line.startswith(token, self._at)

    def takes(self, token: str) -> bool:
        """Go past a token if it comes next."""
        if not self.sees(token):
            return False
        self._at += len(token)
        return True

    def skip(self, token: str) -> "Line":
        """Go past a token, which must come next."""
        if not self.takes(token):
            raise self.error(repr(token))
        return self

    def spaces(self) -> None:
        """Go past spaces, if there are any."""
        while self.takes(" "):
            pass

    def match(self, pattern: re.Pattern[str], wanted: str) -> str:
        """Take what matches a pattern, which must come next."""
        match = pattern.match(self._line, self._at)
        if match is None:
            raise self.error(wanted)
        self._at = match.end()
        return match.group()

    def maybe(self, pattern: re.Pattern[str]) -> str | None:
        """Take what matches a pattern if it comes next."""
        match = pattern.match(self._line, self._at)
        if match is None:
            return None
        self._at = match.end()
        return match.group()

    def items(self, closing: str, one: Callable[[], Item]) -> Iterator[Item]:
        """Items with a comma between them, up to the closing bracket."""
        first = True
        while not self.takes(closing):
            if not first:
                self.skip(", ")
            first = False
            yield one()

    def encoded(self) -> bytes:
        """Bytes that are written whole."""
        if not self.takes("base64:"):
            raise self.error("bytes in base64, not their digest (write the text with exact=True)")
        return base64.b64decode(self.match(_BASE64, "base64"))

    def end(self) -> None:
        """Nothing but spaces may be left."""
        self.spaces()
        if self._at != len(self._line):
            raise self.error("the end of the line")


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
        return proto_of_text(dtype, dims, values[:-1] if fills else values, fills=fills)
    except ValueError as error:
        raise line.error(str(error)) from None


_WITHOUT_TEXT = ("bfloat16", "complex64", "complex128")


def proto_of_text(
    name: str, dims: tuple[int, ...] | None, values: Sequence[object], *, fills: bool = False
) -> bytes:
    """TensorProto of what `tensor_text` shows.

    Args:
        fills: the last value fills the rest of the shape.
    Raises:
        ValueError: values, type and shape do not fit.
    """
    if name not in TYPES_BY_NAME or name in _WITHOUT_TEXT:
        raise ValueError(f"a type with values ({', '.join(TYPES_BY_NAME)}), got {name}")
    n_elements = 0 if dims is None else math.prod(dims)
    if (
        dims is None
        or max((n_elements, *dims)) >= 1 << 63
        or (len(values) != n_elements and not (fills and values))
    ):
        raise ValueError(f"{n_elements} values for the shape, got {len(values)}")
    if not all(_is_of(name, value) for value in values):
        raise ValueError(f"values of {name}, got {', '.join(map(repr, values))}")
    try:
        with np.errstate(over="raise"):
            array = np.array(values, TYPES_BY_NAME[name].numpy)
    except (OverflowError, FloatingPointError) as error:
        raise ValueError(f"values of {name} ({error})") from error
    if not fills:
        return tensor_proto(name, array.reshape(dims))
    element = TYPES_BY_NAME[name]
    proto = TensorProto(dtype=element.number)
    proto.tensor_shape.SetInParent()
    for size in dims:
        proto.tensor_shape.dim.add(size=size)
    getattr(proto, element.values).extend(array.view(element.items).tolist())
    return bytes(proto.SerializeToString(deterministic=True))


def _is_of(name: str, value: object) -> bool:
    if name == "string":
        return isinstance(value, bytes)
    if name == "bool" or isinstance(value, bool):
        return name == "bool" and isinstance(value, bool)
    return isinstance(value, int | float if name in ("float", "double", "half") else int)


Value = TypeVar("Value")

_REF = re.compile(r"\^?[A-Za-z0-9_.][A-Za-z0-9_.\\/>\-]*(?::[A-Za-z0-9_]+)*")
_DEVICE = re.compile(r"[^\s]+")
_POSITION = re.compile(r"[0-9]{1,9}")


def from_text(text: str) -> Graph:
    """The graph of a text; lines that begin with `#` say something else of it and are passed over.

    Raises:
        GraphError: a line cannot be read, or holds only the digest of what the graph has; names the line.
    """
    nodes: dict[str, Node] = {}
    bodies: dict[str, _Body] = {}
    extra = b""
    body: _Body | None = None
    for number, text_line in enumerate(text.splitlines(), start=1):
        line = Line(text_line, number)
        try:
            if text_line.startswith("# rest "):
                if extra:
                    raise line.error("one rest of a graph, and there is one already")
                extra = line.skip("# rest ").encoded()
            elif text_line.startswith("def ") and not text_line.startswith("def = "):
                body = _Body(line)
                _add(bodies, body.name, body, line)
            elif text_line.startswith("  ") and text_line.strip():
                if body is None:
                    raise line.error("a node at the line's beginning, since no function is begun")
                body.add(line)
            elif text_line.strip() and not text_line.startswith("#"):
                node, body = _node(line), None
                _add(nodes, node.name, node, line)
        except (ValueError, SyntaxError, RecursionError) as error:
            raise line.error(f"a line of a graph ({error})") from error
    functions = {name: body.function() for name, body in bodies.items()}
    return Graph(nodes=tuple(nodes.values()), functions=functions, extra=extra)


def _add(known: dict[str, Value], name: str, value: Value, line: Line) -> None:
    if name in known:
        raise line.error(f"each name once, and {name} is there already")
    known[name] = value


def _node(line: Line) -> Node:
    line.spaces()
    name = line.match(NAME, "a node's name")
    line.skip(" = ")
    op = line.match(NAME, "an operation")
    inputs = tuple(line.skip("(").items(")", lambda: line.match(_REF, "an input")))
    line.spaces()
    attrs = parse_attrs(line) if line.sees("{") else {}
    line.spaces()
    device = line.match(_DEVICE, "a device") if line.takes("@") else ""
    line.spaces()
    extra = line.encoded() if line.takes("# rest ") else b""
    line.end()
    return Node(name=name, op=op, inputs=inputs, attrs=attrs, device=device, extra=extra)


class _Body:
    """A function as far as its lines have come."""

    def __init__(self, line: Line) -> None:
        self.name = line.skip("def ").match(NAME, "a function's name")
        self._inputs = tuple(line.skip("(").items(")", lambda: _arg(line)))
        line.skip(" -> ")
        self._outputs = tuple(line.skip("(").items(")", lambda: _arg(line)))
        line.spaces()
        self._attrs = parse_attrs(line) if line.sees("{") else {}
        line.skip(":")
        self._extra = line.encoded() if line.takes(" # rest ") else b""
        line.end()
        self._nodes: dict[str, Node] = {}
        self._results: dict[str, str] = {}
        self._waits: dict[str, str] = {}
        self._arg_attrs: dict[int, dict[str, Attr]] = {}

    def add(self, line: Line) -> None:
        line.spaces()
        if any(line.sees(f"{word} = ") for word in ("argument", "return", "wait")):
            self._add_node(line)  # a node of that name
        elif line.takes("argument "):
            index = int(line.match(_POSITION, "an argument's number"))
            line.spaces()
            self._arg_attrs[index] = parse_attrs(line) if line.sees("{") else {}
            line.end()
        elif line.takes("return "):
            _add(self._results, *_pair(line), line)
        elif line.takes("wait "):
            _add(self._waits, *_pair(line), line)
        else:
            self._add_node(line)

    def _add_node(self, line: Line) -> None:
        node = _node(line)
        _add(self._nodes, node.name, node, line)

    def function(self) -> Function:
        return Function(
            name=self.name,
            inputs=self._inputs,
            outputs=self._outputs,
            nodes=tuple(self._nodes.values()),
            results=self._results,
            control_outputs=tuple(self._waits),
            control_results=self._waits,
            attrs=self._attrs,
            arg_attrs=self._arg_attrs,
            extra=self._extra,
        )


def _pair(line: Line) -> tuple[str, str]:
    name = line.match(NAME, "a name")
    ref = line.skip(" = ").match(_REF, "what it comes from")
    line.end()
    return name, ref


def _arg(line: Line) -> Arg:
    name = line.match(NAME, "an argument's name")
    dtype = DType(line.match(TYPE, "a type")) if line.takes(": ") else None
    extra = b""
    if line.takes(" (+"):
        extra = line.encoded()
        line.skip(")")
    return Arg(name=name, dtype=dtype, extra=extra)


class ExactWriter(TextWriter):
    """Writes whole what has no short form, in base64."""

    def attr(self, attr: Attr) -> str:
        match attr:
            case bytes():
                return repr(attr)[1:]
            case TensorValue(proto) if not is_shown_whole(proto):
                return f"tensor {self.encoded(proto)}"
        return super().attr(attr)

    def encoded(self, data: bytes) -> str:
        return f"base64:{base64.b64encode(data).decode()}"


def exact_text(graph: Graph) -> str:
    return ExactWriter().graph(graph)


def is_shown_whole(proto: bytes) -> bool:
    """Return True if `tensor_text` shows all of a tensor in the form that `proto_of_text` writes."""
    try:
        tensor = TensorProto.FromString(proto)
        name = next(
            element_type.name
            for element_type in TYPES_BY_NAME.values()
            if element_type.number == tensor.dtype
        )
        array, dims = tensor_values(tensor), tensor_dims(tensor)
        assert array is not None
        values = array.tolist()
        if any(isinstance(value, float) and math.isnan(value) for value in values):
            return False  # its sign and payload have no text
        if min(dims or (), default=0) < 0 or any(isinstance(v, bytes) and len(v) > 40 for v in values):
            return False
        fills = len(values) < math.prod(dims or ())
        return len(values) <= MAX_SHOWN and proto == proto_of_text(name, dims, values, fills=fills)
    except (ValueError, StopIteration):
        return False
