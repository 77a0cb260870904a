"""The same graph in float64: what equivalence checks compute with, so that rounding hides no error.

Every tensor that was half, bfloat16 or float becomes double (complex64 becomes complex128). Operations that
cannot work in double stay narrow between casts, under another name, so that each name means what it did.
"""

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

# Generated from public .proto files; tf.compat.v1 does not export them by name.
from tensorflow.core.framework import function_pb2, node_def_pb2, op_def_pb2

from strategies.errors import StrategyError
from strategies.ir.graph import Arg, Attr, DType, Function, Graph, Node, tensor
from strategies.tf_bridge.op_types import OpTensor, op_definition, tensors, with_type_defaults
from strategies.tf_bridge.widen import widen, widen_attrs, widen_extra
from strategies.tf_bridge.widest_types import widest_attrs

# Ops that could work in double but would mean something else: other random draws, other bits, other files, or
# a Python function that returns what it always returned.
_KEPT_OPS = frozenset(
    {
        "RandomUniform",
        "RandomStandardNormal",
        "TruncatedNormal",
        "StatelessRandomUniform",
        "StatelessRandomUniformV2",
        "StatelessRandomNormal",
        "StatelessRandomNormalV2",
        "StatelessTruncatedNormal",
        "StatelessTruncatedNormalV2",
        "StatefulUniform",
        "StatefulStandardNormal",
        "StatefulStandardNormalV2",
        "StatefulTruncatedNormal",
        "Bitcast",
        "DecodeRaw",
        "DecodePaddedRaw",
        "ParseTensor",
        "SerializeTensor",
        "PyFunc",
        "PyFuncStateless",
        "EagerPyFunc",
        "Restore",
        "RestoreSlice",
        "RestoreV2",
        "Save",
        "SaveSlices",
        "SaveV2",
    }
)


class Float64Error(StrategyError):
    """A graph that cannot be rewritten in float64."""


def to_float64(graph: Graph, *, keep: Collection[str] = ()) -> Graph:
    """The graph and its library with double for every floating type, constants, feeds and variables included.

    Names of nodes and their outputs keep their meaning, and every floating one is double, so that whoever
    holds references into the graph changes types only. Constants and random draws are converted.

    Args:
        keep: names of nodes of the graph that compute in their old types, between casts.
    Returns:
        The same object when nothing is floating.
    Raises:
        Float64Error: when an op is unknown to TensorFlow, or one that stays narrow has references.
    """
    functions = {name: _function(f, graph.functions) for name, f in graph.functions.items()}
    nodes = _Body(functions=graph.functions, names=graph.by_name, keep=keep, in_function=False).rewrite(
        graph.nodes
    )
    same_functions = all(functions[name] is f for name, f in graph.functions.items())
    if same_functions and _same(nodes, graph.nodes):
        return graph
    return replace(graph, nodes=nodes, functions=graph.functions if same_functions else functions)


def _same(nodes: Sequence[Node], others: Sequence[Node]) -> bool:
    return len(nodes) == len(others) and all(a is b for a, b in zip(nodes, others, strict=True))


def _function(function: Function, functions: Mapping[str, Function]) -> Function:
    names = {node.name for node in function.nodes} | {arg.name for arg in function.inputs}
    body = _Body(functions=functions, names=names, keep=(), in_function=True)
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
        extra=widen_extra(function.extra, function_pb2.FunctionDef),
    )
    return function if _same(nodes, function.nodes) and rewritten == function else rewritten


def _arg(arg: Arg) -> Arg:
    dtype = None if arg.dtype is None else widen(arg.dtype)
    return Arg(name=arg.name, dtype=dtype, extra=widen_extra(arg.extra, op_def_pb2.OpDef.ArgDef))


@dataclass(slots=True, kw_only=True)
class _Body:
    """The rewrite of one list of nodes: a graph's, or a function's, where references name output arguments.

    Attributes:
        moved: reference → what stands for it now; in functions only, for a graph's references stay.
    """

    functions: Mapping[str, Function]
    names: Container[str]
    keep: Container[str]
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
        kept = node.op in _KEPT_OPS or node.name in self.keep
        after = before if kept else widest_attrs(node.op, op_def, before)
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
        """References to casts where the node takes a narrower type than it is given, and those casts."""
        inputs, casts = list(node.inputs), []
        for i, (was, now) in enumerate(zip(old, new, strict=True)):
            if was.dtype is None or now.dtype is None or _fits(was, now):
                continue
            cast = _cast(self._free(f"{node.name}/narrow_{i}"), inputs[i], widen(was.dtype), now.dtype, node)
            casts.append(cast)
            inputs[i] = self._ref(cast.name, "y", 0, 0)
        return tuple(inputs), casts

    def _wide_outputs(self, node: Node, outputs: Sequence[OpTensor]) -> list[Node]:
        """The narrow node under another name, and a node of its name that gives its outputs in double."""
        narrow = replace(node, name=self._free(f"{node.name}/narrow"))
        refs = [self._ref(narrow.name, output.arg, output.position, i) for i, output in enumerate(outputs)]
        if len(outputs) == 1:
            dtype = _known(node, outputs[0].dtype)
            self._move(node.name, outputs, "y")
            return [narrow, _cast(node.name, refs[0], dtype, widen(dtype), node)]
        casts = []
        for i, output in enumerate(outputs):
            dtype = _known(node, output.dtype)
            if widen(dtype) != dtype:
                name = self._free(f"{node.name}/wide_{i}")
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

    def _free(self, name: str) -> str:
        while name in self.names:
            name += "_"
        return name


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
    return replace(node, attrs=attrs, extra=widen_extra(node.extra, node_def_pb2.NodeDef))


def _updated(
    attrs: Mapping[str, Attr], before: Mapping[str, Attr], after: Mapping[str, Attr]
) -> Mapping[str, Attr]:
    """Attributes with what differs between before and after, the same object when nothing does."""
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
