"""Types of operations' tensors, and the types in which a step computes."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

# Generated from a public .proto file; tf.compat.v1 does not export it by name.
from tensorflow.core.framework import op_def_pb2

# There is no public access to the types of this build's ops and kernels.
from tensorflow.python.framework import kernels, op_def_registry

from strategies.ir.graph import Attr, DType, Function, Graph, Node, output_index, producer
from strategies.ir.train_graph import TrainGraph
from strategies.ir.traversal import reachable_functions
from strategies.tf_bridge.attrs import attr_from_proto, dtype_number, dtype_of


class OpTensor(NamedTuple):
    """One input or output of a node: the op's argument, its index there, and the type if known."""

    arg: str
    position: int
    dtype: DType | None


@cache
def op_definition(op: str) -> op_def_pb2.OpDef | None:
    """Definition of an op; None if unknown to this process."""
    return op_def_registry.get(op)


@cache
def takes(op: str, attr: str, dtype: DType) -> bool:
    """True if an op's definition, and its CPU kernels if any, allow a type for an attribute."""
    number = dtype_number(dtype)
    (attr_def,) = (a for a in op_def_registry.get(op).attr if a.name == attr)
    if attr_def.HasField("allowed_values") and number not in attr_def.allowed_values.list.type:
        return False
    constraints = [
        [constraint for constraint in kernel.constraint if constraint.name == attr]
        for kernel in kernels.get_registered_kernels_for_op(op).kernel
        if kernel.device_type in {"CPU", "DEFAULT"}
    ]
    return not constraints or any(
        all(number in constraint.allowed_values.list.type for constraint in kernel) for kernel in constraints
    )


def with_type_defaults(op_def: op_def_pb2.OpDef, attrs: Mapping[str, Attr]) -> Mapping[str, Attr]:
    """Add default values of type and number attributes that the graph omits."""
    left_out = {
        attr_def.name: attr_from_proto(attr_def.default_value)
        for attr_def in op_def.attr
        if attr_def.name not in attrs and attr_def.type in {"type", "list(type)", "int"}
    }
    return {**attrs, **left_out} if left_out else attrs


def tensors(args: Sequence[op_def_pb2.OpDef.ArgDef], attrs: Mapping[str, Attr]) -> list[OpTensor]:
    """Tensors of arguments under these attributes."""
    return [OpTensor(arg.name, i, dtype) for arg in args for i, dtype in enumerate(_arg_dtypes(arg, attrs))]


def output_type(graph: Graph, ref: str) -> DType | None:
    """Type of a graph's tensor; None if unknown."""
    node = graph.by_name[producer(ref)]
    op_def = op_definition(node.op)
    if op_def is None:
        called = graph.functions.get(node.op)
        return None if called is None else called.outputs[output_index(ref)].dtype
    return tensors(op_def.output_arg, with_type_defaults(op_def, node.attrs))[output_index(ref)].dtype


def _arg_dtypes(arg: op_def_pb2.OpDef.ArgDef, attrs: Mapping[str, Attr]) -> Sequence[DType | None]:
    if arg.type_list_attr:
        types = attrs[arg.type_list_attr]
        return (
            [item if isinstance(item, DType) else None for item in types] if isinstance(types, tuple) else []
        )
    attr = attrs[arg.type_attr] if arg.type_attr else dtype_of(arg.type)
    dtype = attr if isinstance(attr, DType) else None
    if dtype is not None and arg.is_ref:
        dtype = DType(f"{dtype}_ref")
    number = attrs[arg.number_attr] if arg.number_attr else 1
    return [dtype] * (number if isinstance(number, int) else 0)


FLOATING = frozenset({"half", "bfloat16", "float", "double", "complex64", "complex128"})
# They return or fetch their inputs: nothing is rounded.
_PASSING = frozenset(
    {"Identity", "IdentityN", "Placeholder", "Const", "StopGradient", "Reshape", "Switch", "Merge"}
)


def computed_types(step: TrainGraph) -> frozenset[DType]:
    """Floating types in which nodes outside of the update compute.

    Values that only become integers or truth values do not count, such as scores of an accuracy metric.
    """
    update = step.update_nodes()
    outside = [node for node in step.graph.nodes if node.name not in update]
    functions = step.graph.functions
    bodies = [functions[name] for name in reachable_functions(outside, functions)]
    returned = [{producer(ref) for ref in body.results.values()} for body in bodies]
    return _rounded_to(outside, functions, step.returned()).union(
        *(_rounded_to(body.nodes, functions, results) for body, results in zip(bodies, returned, strict=True))
    )


def _rounded_to(
    nodes: Iterable[Node], functions: Mapping[str, Function], returned: Iterable[str]
) -> frozenset[DType]:
    nodes = tuple(nodes)
    used = set(returned)
    discarded = set()
    for node in nodes:
        takes = {producer(ref) for ref in node.inputs if not ref.startswith("^")}
        if _makes_floating(node, functions):
            used |= takes
        else:
            discarded |= takes
    outputs = (_floating_outputs(n, functions) for n in nodes if n.name in used or n.name not in discarded)
    return frozenset[DType]().union(*outputs)


def _makes_floating(node: Node, functions: Mapping[str, Function]) -> bool:
    op_def = None if node.op in functions else op_definition(node.op)
    if op_def is None:
        return True
    outputs = list(tensors(op_def.output_arg, with_type_defaults(op_def, node.attrs)))
    return not outputs or any(t.dtype is None or t.dtype in FLOATING for t in outputs)


def _floating_outputs(node: Node, functions: Mapping[str, Function]) -> set[DType]:
    op_def = None if node.op in _PASSING or node.op in functions else op_definition(node.op)
    if op_def is None:
        return set()
    attrs = with_type_defaults(op_def, node.attrs)
    if not any(t.dtype in FLOATING for t in tensors(op_def.input_arg, attrs)):
        return set()
    return {t.dtype for t in tensors(op_def.output_arg, attrs) if t.dtype is not None and t.dtype in FLOATING}
