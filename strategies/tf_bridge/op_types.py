"""Types of ops' tensors: those of a node's inputs and outputs, and those that it could take."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

# Generated from a public .proto file; tf.compat.v1 does not export it by name.
from tensorflow.core.framework import op_def_pb2

# What types an op may have, and which of them this build has kernels for, is public nowhere.
from tensorflow.python.framework import kernels, op_def_registry

from strategies.ir.graph import Attr, DType, Graph, output_index, producer
from strategies.tf_bridge.attrs import attr_from_proto, dtype_number, dtype_of


class OpTensor(NamedTuple):
    """One input or output of a node: the op's argument, which of its tensors, and the type if it is known."""

    arg: str
    position: int
    dtype: DType | None


@cache
def op_definition(op: str) -> op_def_pb2.OpDef | None:
    """The definition of an op; None when this process knows no such op."""
    return op_def_registry.get(op)


@cache
def takes(op: str, attr: str, dtype: DType) -> bool:
    """Whether an op's definition allows a type for an attribute, and a CPU kernel does where there is any."""
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
    """Attributes with defaults where the graph leaves out what gives a tensor its type or number."""
    left_out = {
        attr_def.name: attr_from_proto(attr_def.default_value)
        for attr_def in op_def.attr
        if attr_def.name not in attrs and attr_def.type in {"type", "list(type)", "int"}
    }
    return {**attrs, **left_out} if left_out else attrs


def tensors(args: Sequence[op_def_pb2.OpDef.ArgDef], attrs: Mapping[str, Attr]) -> list[OpTensor]:
    """The tensors that arguments stand for, under these attributes."""
    return [OpTensor(arg.name, i, dtype) for arg in args for i, dtype in enumerate(_arg_dtypes(arg, attrs))]


def output_type(graph: Graph, ref: str) -> DType | None:
    """The type of a graph's tensor; None when this process does not know the op or it says no type."""
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
