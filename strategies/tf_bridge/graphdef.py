"""GraphDef ↔ graph, lossless in both directions: unknown fields are preserved as serialized bytes.

The way back writes the protobuf wire format of nodes itself: replicas share their attributes, so that each
mapping of them is serialized once and a node costs one join of bytes, far less than filling in a NodeDef.
"""

from collections.abc import Iterable, Mapping

import tensorflow as tf
from google.protobuf.message import Message

# Generated from public .proto files; tf.compat.v1 does not export them by name.
from tensorflow.core.framework import function_pb2, node_def_pb2, op_def_pb2

from strategies.errors import GraphError
from strategies.ir.graph import Arg, Attr, Function, Graph, Node
from strategies.tf_bridge.attrs import attrs_from_proto, dtype_number, dtype_of, fill_attrs

# Field numbers as tags of the wire format: (number << 3) | 2, all length-delimited.
_GRAPH_NODE = b"\x0a"
_GRAPH_LIBRARY = b"\x12"
_LIBRARY_FUNCTION = b"\x0a"
_FUNCTION_NODE = b"\x1a"
_NODE_NAME = b"\x0a"
_NODE_OP = b"\x12"
_NODE_INPUT = b"\x1a"
_NODE_DEVICE = b"\x22"


def graph_from_graphdef(graph_def: tf.compat.v1.GraphDef) -> Graph:
    """Convert a GraphDef without loss.

    Raises:
        GraphError: two functions of the library have the same name.
    """
    extra = tf.compat.v1.GraphDef()
    extra.CopyFrom(graph_def)
    extra.ClearField("node")
    extra.library.ClearField("function")
    if not extra.library.ByteSize():
        extra.ClearField("library")
    if graph_def.HasField("library") and not graph_def.library.ByteSize():
        extra.library.SetInParent()
    functions: dict[str, Function] = {}
    for function_def in graph_def.library.function:
        function = _function(function_def)
        if function.name in functions:
            raise GraphError(
                f"function {function.name!r} is in the library twice; rename one before it is converted"
            )
        functions[function.name] = function
    return Graph(
        nodes=_nodes(graph_def.node), functions=functions, extra=extra.SerializeToString(deterministic=True)
    )


def _nodes(node_defs: Iterable[node_def_pb2.NodeDef]) -> tuple[Node, ...]:
    return tuple(
        Node(
            name=node_def.name,
            op=node_def.op,
            inputs=tuple(node_def.input),
            attrs=attrs_from_proto(node_def.attr),
            device=node_def.device,
            extra=_node_extra(node_def),
        )
        for node_def in node_defs
    )


def _node_extra(node_def: node_def_pb2.NodeDef) -> bytes:
    if not (node_def.HasField("experimental_debug_info") or node_def.HasField("experimental_type")):
        return b""
    return _rest(node_def, "name", "op", "input", "device", "attr")


def _rest(message: Message, *read_fields: str) -> bytes:
    rest = type(message)()
    rest.CopyFrom(message)
    for name in read_fields:
        rest.ClearField(name)
    data: bytes = rest.SerializeToString(deterministic=True)
    return data


def _function(function_def: function_pb2.FunctionDef) -> Function:
    signature = function_def.signature
    rest = function_pb2.FunctionDef()
    rest.CopyFrom(function_def)
    for name in ("node_def", "ret", "control_ret", "attr", "arg_attr"):
        rest.ClearField(name)
    for name in ("name", "input_arg", "output_arg", "control_output"):
        rest.signature.ClearField(name)
    return Function(
        name=signature.name,
        inputs=tuple(map(_arg, signature.input_arg)),
        outputs=tuple(map(_arg, signature.output_arg)),
        nodes=_nodes(function_def.node_def),
        results=dict(sorted(function_def.ret.items())),
        control_outputs=tuple(signature.control_output),
        control_results=dict(sorted(function_def.control_ret.items())),
        attrs=attrs_from_proto(function_def.attr),
        arg_attrs={
            index: attrs_from_proto(attrs.attr) for index, attrs in sorted(function_def.arg_attr.items())
        },
        extra=rest.SerializeToString(deterministic=True),
    )


def _arg(arg_def: op_def_pb2.OpDef.ArgDef) -> Arg:
    dtype = dtype_of(arg_def.type) if arg_def.type else None
    read_fields = ("name",) if dtype is None else ("name", "type")
    return Arg(name=arg_def.name, dtype=dtype, extra=_rest(arg_def, *read_fields))


def graphdef_from_graph(graph: Graph) -> tf.compat.v1.GraphDef:
    """Convert a graph to a GraphDef."""
    return tf.compat.v1.GraphDef.FromString(serialize_graph(graph))


def serialize_graph(graph: Graph) -> bytes:
    """Convert a graph to a serialized GraphDef, without building the proto."""
    attrs = _SerializedAttrs()
    functions = (_chunk(_LIBRARY_FUNCTION, _function_bytes(f, attrs)) for f in graph.functions.values())
    library = b"".join(functions)
    nodes = _node_chunks(_GRAPH_NODE, graph.nodes, attrs)
    return b"".join([*nodes, _chunk(_GRAPH_LIBRARY, library) if library else b"", graph.extra])


class _SerializedAttrs(dict[int, bytes]):
    """NodeDef bytes of each attribute mapping, by its identity: copies of a node share theirs.

    The graph being written keeps every mapping alive, so that no `id()` is reused.
    """

    def of(self, attrs: Mapping[str, Attr]) -> bytes:
        data = self.get(id(attrs))
        if data is None:
            node_def = tf.compat.v1.NodeDef()
            fill_attrs(node_def.attr, attrs)
            data = self[id(attrs)] = node_def.SerializeToString(deterministic=True)
        return data


class _Chunks(dict[str, bytes]):
    """Wire format of a string field, encoded once per string."""

    def __init__(self, tag: bytes) -> None:
        super().__init__()
        self._tag = tag

    def __missing__(self, text: str) -> bytes:
        data = self[text] = _chunk(self._tag, text.encode())
        return data


def _chunk(tag: bytes, data: bytes) -> bytes:
    length = len(data)
    if length < 0x80:
        return tag + bytes((length,)) + data
    prefix = bytearray(tag)
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix) + data


def _node_chunks(tag: bytes, nodes: Iterable[Node], attrs: _SerializedAttrs) -> list[bytes]:
    ops, inputs, devices = _Chunks(_NODE_OP), _Chunks(_NODE_INPUT), _Chunks(_NODE_DEVICE)
    devices[""] = b""
    chunks = []
    for node in nodes:
        fields = [_chunk(_NODE_NAME, node.name.encode()), ops[node.op]]
        fields += map(inputs.__getitem__, node.inputs)
        fields += (devices[node.device], attrs.of(node.attrs), node.extra)
        chunks.append(_chunk(tag, b"".join(fields)))
    return chunks


def _function_bytes(function: Function, attrs: _SerializedAttrs) -> bytes:
    proto = function_pb2.FunctionDef.FromString(function.extra)
    proto.signature.name = function.name
    proto.signature.input_arg.extend(map(_arg_proto, function.inputs))
    proto.signature.output_arg.extend(map(_arg_proto, function.outputs))
    proto.signature.control_output.extend(function.control_outputs)
    proto.ret.update(function.results)
    proto.control_ret.update(function.control_results)
    fill_attrs(proto.attr, function.attrs)
    for index, arg_attrs in function.arg_attrs.items():
        fill_attrs(proto.arg_attr[index].attr, arg_attrs)
    head: bytes = proto.SerializeToString(deterministic=True)
    return b"".join([head, *_node_chunks(_FUNCTION_NODE, function.nodes, attrs)])


def _arg_proto(arg: Arg) -> op_def_pb2.OpDef.ArgDef:
    proto = op_def_pb2.OpDef.ArgDef.FromString(arg.extra)
    proto.name = arg.name
    if arg.dtype is not None:
        proto.type = dtype_number(arg.dtype)
    return proto
