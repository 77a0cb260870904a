"""A graph as stable, readable, diffable text: for golden tests and for people."""

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
from strategies.ir.tensor_text import tensor_text


def to_text(graph: Graph) -> str:
    """One line per node, `name = Op(inputs) {attributes} @device`, then the functions by name."""
    lines = list(map(_node, graph.nodes))
    if graph.extra:
        lines.append(f"# rest {_digest(graph.extra)}")
    for name in sorted(graph.functions):
        lines += ["", *_function(graph.functions[name])]
    return "\n".join(lines) + "\n"


def _node(node: Node) -> str:
    parts = [f"{node.name} = {node.op}({', '.join(node.inputs)})", _attrs(node.attrs)]
    if node.device:
        parts.append(f"@{node.device}")
    if node.extra:
        parts.append(f"# rest {_digest(node.extra)}")
    return " ".join(filter(None, parts))


def _function(function: Function) -> Iterator[str]:
    arguments = ", ".join(map(_arg, function.inputs))
    outputs = ", ".join(map(_arg, function.outputs))
    heading = f"def {function.name}({arguments}) -> ({outputs})"
    attrs = _attrs(function.attrs)
    rest = f" # rest {_digest(function.extra)}" if function.extra else ""
    yield f"{heading}{' ' + attrs if attrs else ''}:{rest}"
    for index in sorted(function.arg_attrs):
        yield f"  argument {index} {_attrs(function.arg_attrs[index])}".rstrip()
    for node in function.nodes:
        yield f"  {_node(node)}"
    for name in sorted(function.results):
        yield f"  return {name} = {function.results[name]}"
    for name in sorted(function.control_results):
        yield f"  wait {name} = {function.control_results[name]}"


def _arg(arg: Arg) -> str:
    text = arg.name if arg.dtype is None else f"{arg.name}: {arg.dtype}"
    return f"{text} (+{_digest(arg.extra)})" if arg.extra else text


def _attrs(attrs: Mapping[str, Attr]) -> str:
    if not attrs:
        return ""
    return "{" + ", ".join(f"{name}={attr_text(attrs[name])}" for name in sorted(attrs)) + "}"


def attr_text(attr: Attr) -> str:
    """An attribute in short form: types and shapes bare, tensors by type, shape and values or a digest."""
    match attr:
        case tuple():
            text = "[" + ", ".join(map(attr_text, attr)) + "]"
        case DType():
            text = str(attr)
        case bytes():
            text = repr(attr)[1:] if len(attr) <= 80 else f"bytes({len(attr)}) {_digest(attr)}"
        case Shape(dims):
            text = "<unknown>" if dims is None else f"<{','.join('?' if d < 0 else str(d) for d in dims)}>"
        case TensorValue(proto):
            text = tensor_text(proto)
        case FunctionRef(name, bound):
            text = f"&{name}{_attrs(bound)}"
        case AttrPlaceholder(name):
            text = f"${name}"
        case OpaqueAttr(proto):
            text = f"opaque {_digest(proto)}" if proto else "unset"
        case _:
            text = repr(attr)
    return text


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:8]
