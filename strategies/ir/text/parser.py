"""Reads back what `strategies.ir.text.writer` writes, so that tests and people can write graphs as text."""

import re
from typing import TypeVar

from strategies.ir.graph import Arg, Attr, DType, Function, Graph, Node
from strategies.ir.text.attributes import parse_attrs
from strategies.ir.text.line_reader import NAME, TYPE, Line

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
    functions = {name: each.function() for name, each in bodies.items()}
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
