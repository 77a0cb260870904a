"""Graphs rewritten in float64, so that rounding hides no error in equivalence checks.

Every half, bfloat16 or float tensor becomes double (complex64 becomes complex128). Operations without a
double form stay narrow between casts, under another name, so that each name keeps its meaning.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import tensorflow as tf

# Generated from public .proto files; tf.compat.v1 does not export them by name.
from tensorflow.core.framework import node_def_pb2, op_def_pb2, tensor_pb2

from strategies.errors import StrategyError
from strategies.ir.graph import (
    Arg,
    Attr,
    DType,
    Function,
    FunctionRef,
    Graph,
    Node,
    TensorValue,
    free_name,
    tensor,
)
from strategies.ir.ops import op_set
from strategies.ir.train_graph import TrainGraph
from strategies.tf_bridge.attrs import dtype_number, dtype_of
from strategies.tf_bridge.op_types import OpTensor, op_definition, takes, tensors, with_type_defaults

_WIDE = {
    "half": DType("double"),
    "bfloat16": DType("double"),
    "float": DType("double"),
    "complex64": DType("complex128"),
}
_WIDE |= {f"{narrow}_ref": DType(f"{wide}_ref") for narrow, wide in _WIDE.items()}


def widen(dtype: DType) -> DType:
    """Double form of a floating type; other types are unchanged."""
    return _WIDE.get(dtype, dtype)


def widen_attrs(attrs: Mapping[str, Attr]) -> Mapping[str, Attr]:
    """Attributes with double for every floating type; the same object if there is none."""
    changed = {name: wide for name, attr in attrs.items() if (wide := _widen_attr(attr)) is not attr}
    return {**attrs, **changed} if changed else attrs


def _widen_attr(attr: Attr) -> Attr:
    wide: Attr = attr
    if isinstance(attr, DType):
        wide = widen(attr)
    elif isinstance(attr, TensorValue):
        wide = _widen_tensor(attr)
    elif isinstance(attr, tuple):
        items = tuple(map(_widen_attr, attr))
        wide = attr if all(a is b for a, b in zip(items, attr, strict=True)) else items
    elif isinstance(attr, FunctionRef):
        bound = widen_attrs(attr.attrs)
        wide = attr if bound is attr.attrs else FunctionRef(attr.name, bound)
    return wide


def _widen_tensor(value: TensorValue) -> TensorValue:
    proto = tensor_pb2.TensorProto.FromString(value.proto)
    dtype = dtype_of(proto.dtype)
    if dtype is None or widen(dtype) == dtype:
        return value
    wide = tf.as_dtype(dtype_number(widen(dtype)))
    result = tensor_pb2.TensorProto(dtype=wide.as_datatype_enum, tensor_shape=proto.tensor_shape)
    # A proto with fewer values than elements repeats the last one; it stays as short as it was.
    if proto.tensor_content:
        values = np.frombuffer(proto.tensor_content, tf.as_dtype(proto.dtype).as_numpy_dtype)
        result.tensor_content = values.astype(wide.as_numpy_dtype).tobytes()
    elif proto.half_val:
        words = np.array(proto.half_val, np.uint16)
        result.double_val.extend(
            words.view(tf.as_dtype(proto.dtype).as_numpy_dtype).astype(np.float64).tolist()
        )
    else:
        result.double_val.extend(proto.float_val)
        result.dcomplex_val.extend(proto.scomplex_val)
    return TensorValue(result.SerializeToString(deterministic=True))


_FLOAT = DType("float")


def widest_attrs(op: str, op_def: op_def_pb2.OpDef, attrs: Mapping[str, Attr]) -> Mapping[str, Attr]:
    """Attributes in double, as far as the op supports it."""
    wide = widen_attrs(attrs)
    narrow: dict[str, Attr] = {}
    for attr_def in op_def.attr:
        name, attr = attr_def.name, attrs.get(attr_def.name)
        if isinstance(attr, DType):
            narrow[name] = _widest(op, name, attr)
        elif isinstance(attr, tuple) and attr_def.type == "list(type)":
            narrow[name] = tuple(
                _widest(op, name, item) if isinstance(item, DType) else item for item in attr
            )
    narrow = {name: attr for name, attr in narrow.items() if attr != wide[name]}
    return {**wide, **narrow} if narrow else wide


def _widest(op: str, attr: str, dtype: DType) -> DType:
    wide = widen(dtype)
    if wide == dtype or takes(op, attr, wide):
        return wide
    return _FLOAT if wide == "double" and takes(op, attr, _FLOAT) else dtype


# Ops that support double but would then mean something else: other random draws, other bits, other files, or
# a Python function with its old return type.
_KEPT_OPS = op_set("""
    Bitcast DecodePaddedRaw DecodeRaw EagerPyFunc ParseTensor PyFunc PyFuncStateless
    RandomStandardNormal RandomUniform Restore RestoreSlice RestoreV2 Save SaveSlices SaveV2
    SerializeTensor StatefulStandardNormal StatefulStandardNormalV2 StatefulTruncatedNormal
    StatefulUniform StatelessRandomNormal StatelessRandomNormalV2 StatelessRandomUniform
    StatelessRandomUniformV2 StatelessTruncatedNormal StatelessTruncatedNormalV2 TruncatedNormal
""")


class Float64Error(StrategyError):
    """A graph that cannot be rewritten in float64."""


def to_float64(graph: Graph) -> Graph:
    """Rewrite a graph and its library in double, including constants, feeds and variables.

    Names keep their meaning, so that references stay valid. Constants and random draws are converted.

    Returns:
        The rewritten graph; the same object if it has no floating types.
    Raises:
        Float64Error: an op is unknown, or an op that stays narrow has reference types.
    """
    functions = {name: _function(f, graph.functions) for name, f in graph.functions.items()}
    nodes = _Body(functions=graph.functions, names=graph.by_name, in_function=False).rewrite(graph.nodes)
    same_functions = all(functions[name] is f for name, f in graph.functions.items())
    if same_functions and _same(nodes, graph.nodes):
        return graph
    return replace(graph, nodes=nodes, functions=graph.functions if same_functions else functions)


def _same(nodes: Sequence[Node], others: Sequence[Node]) -> bool:
    return len(nodes) == len(others) and all(a is b for a, b in zip(nodes, others, strict=True))


def _function(function: Function, functions: Mapping[str, Function]) -> Function:
    names = {node.name for node in function.nodes} | {arg.name for arg in function.inputs}
    body = _Body(functions=functions, names=names, in_function=True)
    nodes = body.rewrite(function.nodes)
    rewritten = Function(
        name=function.name,
        inputs=tuple(map(_arg, function.inputs)),
        outputs=tuple(map(_arg, function.outputs)),
        nodes=nodes,
        results={name: body.moved.get(ref, ref) for name, ref in function.results.items()},
        control_outputs=function.control_outputs,
        control_results=function.control_results,
        attrs=widen_attrs(function.attrs),
        arg_attrs={index: widen_attrs(attrs) for index, attrs in function.arg_attrs.items()},
        extra=function.extra,
    )
    return function if _same(nodes, function.nodes) and rewritten == function else rewritten


def _arg(arg: Arg) -> Arg:
    dtype = None if arg.dtype is None else widen(arg.dtype)
    rest = op_def_pb2.OpDef.ArgDef.FromString(arg.extra)
    # TensorFlow infers full types anew.
    rest.ClearField("experimental_full_type")
    for handle in rest.handle_data:
        if (narrow := dtype_of(handle.dtype)) is not None:
            handle.dtype = dtype_number(widen(narrow))
    return Arg(name=arg.name, dtype=dtype, extra=rest.SerializeToString(deterministic=True))


@dataclass(slots=True, kw_only=True)
class _Body:
    """Rewrite of a graph's nodes, or of a function's, where references name output arguments.

    Attributes:
        moved: reference → its replacement; used in functions only.
    """

    functions: Mapping[str, Function]
    names: Container[str]
    in_function: bool
    moved: dict[str, str] = field(default_factory=dict)

    def rewrite(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        rewritten = [new for node in nodes for new in self._node(node)]
        if not self.moved:
            return tuple(rewritten)
        return tuple(self._follow(node) for node in rewritten)

    def _follow(self, node: Node) -> Node:
        if self.moved.keys().isdisjoint(node.inputs):
            return node
        return replace(node, inputs=tuple(self.moved.get(ref, ref) for ref in node.inputs))

    def _node(self, node: Node) -> list[Node]:
        if node.op in self.functions:
            return [_with_attrs(node, widen_attrs(node.attrs))]
        op_def = _op_def(node)
        before = with_type_defaults(op_def, node.attrs)
        keeps_types = node.op in _KEPT_OPS
        after = before if keeps_types else widest_attrs(node.op, op_def, before)
        inputs, casts = self._narrow_inputs(
            node, tensors(op_def.input_arg, before), tensors(op_def.input_arg, after)
        )
        rewritten = _with_attrs(node, _updated(node.attrs, before, after))
        if casts:
            rewritten = replace(rewritten, inputs=inputs)
        old, new = tensors(op_def.output_arg, before), tensors(op_def.output_arg, after)
        if all(map(_fits, old, new)):
            return [*casts, rewritten]
        return [*casts, *self._wide_outputs(rewritten, new)]

    def _narrow_inputs(
        self, node: Node, old: Sequence[OpTensor], new: Sequence[OpTensor]
    ) -> tuple[tuple[str, ...], list[Node]]:
        inputs, casts = list(node.inputs), []
        for i, (was, now) in enumerate(zip(old, new, strict=True)):
            if was.dtype is None or now.dtype is None or _fits(was, now):
                continue
            name = free_name(f"{node.name}/narrow_{i}", self.names)
            casts.append(_cast(name, inputs[i], widen(was.dtype), now.dtype, node))
            inputs[i] = self._ref(name, "y", 0, 0)
        return tuple(inputs), casts

    def _wide_outputs(self, node: Node, outputs: Sequence[OpTensor]) -> list[Node]:
        """Narrow node under another name, and a node of its old name that returns its outputs in double."""
        narrow = replace(node, name=free_name(f"{node.name}/narrow", self.names))
        refs = [self._ref(narrow.name, output.arg, output.position, i) for i, output in enumerate(outputs)]
        if len(outputs) == 1:
            dtype = _known(node, outputs[0].dtype)
            self._move(node.name, outputs, "y")
            return [narrow, _cast(node.name, refs[0], dtype, widen(dtype), node)]
        casts = []
        for i, output in enumerate(outputs):
            dtype = _known(node, output.dtype)
            if widen(dtype) != dtype:
                name = free_name(f"{node.name}/wide_{i}", self.names)
                casts.append(_cast(name, refs[i], dtype, widen(dtype), node))
                refs[i] = self._ref(name, "y", 0, 0)
        types = tuple(widen(_known(node, output.dtype)) for output in outputs)
        self._move(node.name, outputs, "output")
        whole = Node(
            name=node.name, op="IdentityN", inputs=tuple(refs), attrs={"T": types}, device=node.device
        )
        return [narrow, *casts, whole]

    def _move(self, name: str, outputs: Sequence[OpTensor], arg: str) -> None:
        if self.in_function:
            self.moved |= {f"{name}:{o.arg}:{o.position}": f"{name}:{arg}:{i}" for i, o in enumerate(outputs)}

    def _ref(self, name: str, arg: str, index: int, position: int) -> str:
        return f"{name}:{arg}:{index}" if self.in_function else tensor(name, position)


def _known(node: Node, dtype: DType | None) -> DType:
    if dtype is None or dtype.endswith("_ref"):
        raise Float64Error(
            f"node {node.name!r} ({node.op}): a cast needs a tensor of known type, got {dtype or 'none'}; "
            "use resource variables and functions without type parameters"
        )
    return dtype


def _fits(was: OpTensor, now: OpTensor) -> bool:
    return was.dtype is None or now.dtype == widen(was.dtype)


def _cast(name: str, ref: str, source: DType, target: DType, like: Node) -> Node:
    attrs: dict[str, Attr] = {"SrcT": _known(like, source), "DstT": target, "Truncate": False}
    return Node(name=name, op="Cast", inputs=(ref,), attrs=attrs, device=like.device)


def _with_attrs(node: Node, attrs: Mapping[str, Attr]) -> Node:
    if attrs is node.attrs:
        return node
    rest = node_def_pb2.NodeDef.FromString(node.extra)
    # TensorFlow infers full types anew.
    rest.ClearField("experimental_type")
    return replace(node, attrs=attrs, extra=rest.SerializeToString(deterministic=True))


def _updated(
    attrs: Mapping[str, Attr], before: Mapping[str, Attr], after: Mapping[str, Attr]
) -> Mapping[str, Attr]:
    changed = {
        name: attr for name, attr in after.items() if attr is not before[name] and attr != before[name]
    }
    return {**attrs, **changed} if changed else attrs


def _op_def(node: Node) -> op_def_pb2.OpDef:
    op_def = op_definition(node.op)
    if op_def is None:
        raise Float64Error(
            f"node {node.name!r}: op {node.op!r} is unknown to this TensorFlow, and so are its types; "
            "load the library that defines it, or verify with the model's own types"
        )
    return op_def


def step_in_float64(step: TrainGraph) -> TrainGraph:
    """Rewrite a captured step in double, before any pass."""
    return replace(
        step,
        graph=to_float64(step.graph),
        variables=tuple(replace(v, dtype=widen(v.dtype)) for v in step.variables),
        boundaries=tuple(replace(b, dtype=widen(b.dtype)) for b in step.boundaries),
        batch=tuple(replace(b, dtype=widen(b.dtype)) for b in step.batch),
        statistics=tuple(replace(s, dtype=widen(s.dtype)) for s in step.statistics),
    )
