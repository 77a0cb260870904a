"""Stable text of a graph, for golden tests and for people."""

import hashlib
from collections.abc import Iterator, Mapping

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
from strategies.ir.tensor_proto import tensor_text

_MAX_BYTES = 80


def to_text(graph: Graph) -> str:
    """One line per node, `name = Op(inputs) {attributes} @device`, then the functions by name."""
    return TextWriter().graph(graph)


class TextWriter:
    """Writes graphs as text, with digests of large constants and serialized messages."""

    def graph(self, graph: Graph) -> str:
        lines = list(map(self.node, graph.nodes))
        if graph.extra:
            lines.append(f"# rest {self.encoded(graph.extra)}")
        for name in sorted(graph.functions):
            lines += ["", *self.function(graph.functions[name])]
        return "\n".join(lines) + "\n"

    def node(self, node: Node) -> str:
        parts = [f"{node.name} = {node.op}({', '.join(node.inputs)})", self.attrs(node.attrs)]
        if node.device:
            parts.append(f"@{node.device}")
        if node.extra:
            parts.append(f"# rest {self.encoded(node.extra)}")
        return " ".join(filter(None, parts))

    def function(self, function: Function) -> Iterator[str]:
        arguments = ", ".join(map(self.arg, function.inputs))
        outputs = ", ".join(map(self.arg, function.outputs))
        heading = f"def {function.name}({arguments}) -> ({outputs})"
        attrs = self.attrs(function.attrs)
        rest = f" # rest {self.encoded(function.extra)}" if function.extra else ""
        yield f"{heading}{' ' + attrs if attrs else ''}:{rest}"
        for index in sorted(function.arg_attrs):
            yield f"  argument {index} {self.attrs(function.arg_attrs[index])}".rstrip()
        for node in function.nodes:
            yield f"  {self.node(node)}"
        for name in sorted(function.results):
            yield f"  return {name} = {function.results[name]}"
        for name in function.control_outputs:
            yield f"  wait {name} = {function.control_results[name]}"

    def arg(self, arg: Arg) -> str:
        text = arg.name if arg.dtype is None else f"{arg.name}: {arg.dtype}"
        return f"{text} (+{self.encoded(arg.extra)})" if arg.extra else text

    def attrs(self, attrs: Mapping[str, Attr]) -> str:
        if not attrs:
            return ""
        return "{" + ", ".join(f"{name}={self.attr(attrs[name])}" for name in sorted(attrs)) + "}"

    def attr(self, attr: Attr) -> str:
        match attr:
            case tuple():
                text = "[" + ", ".join(map(self.attr, attr)) + "]"
            case DType():
                text = str(attr)
            case bytes():
                is_short = len(attr) <= _MAX_BYTES
                text = repr(attr)[1:] if is_short else f"bytes({len(attr)}) {self.encoded(attr)}"
            case Shape(dims):
                text = (
                    "<unknown>" if dims is None else f"<{','.join('?' if d < 0 else str(d) for d in dims)}>"
                )
            case TensorValue(proto):
                text = tensor_text(proto)
            case FunctionRef(name, bound):
                text = f"&{name}{self.attrs(bound)}"
            case AttrPlaceholder(name):
                text = f"${name}"
            case OpaqueAttr(proto):
                text = f"opaque {self.encoded(proto)}" if proto else "unset"
            case _:
                text = repr(attr)
        return text

    def encoded(self, data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()[:8]
