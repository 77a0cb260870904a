"""The floating types that a captured step's forward and backward pass compute in."""

from collections.abc import Iterable, Mapping

from strategies.ir.functions import reachable_functions
from strategies.ir.graph import DType, Function, Node
from strategies.ir.train_graph import TrainGraph
from strategies.tf_bridge.op_types import op_definition, tensors, with_type_defaults

FLOATING = frozenset({"half", "bfloat16", "float", "double", "complex64", "complex128"})
# They pass on what they are given, or fetch it: nothing is rounded.
_PASSING = frozenset(
    {"Identity", "IdentityN", "Placeholder", "Const", "StopGradient", "Reshape", "Switch", "Merge"}
)


def computed_types(step: TrainGraph) -> frozenset[DType]:
    """Floating types of what nodes outside of the update make of other floating tensors."""
    update = step.update_nodes()
    outside = [node for node in step.graph.nodes if node.name not in update]
    functions = step.graph.functions
    bodies = [functions[name].nodes for name in reachable_functions(outside, functions)]
    return frozenset().union(*(_rounded_to(nodes, functions) for nodes in (outside, *bodies)))


def _rounded_to(nodes: Iterable[Node], functions: Mapping[str, Function]) -> set[DType]:
    dtypes: set[DType] = set()
    for node in nodes:
        op_def = None if node.op in _PASSING or node.op in functions else op_definition(node.op)
        if op_def is None:
            continue
        attrs = with_type_defaults(op_def, node.attrs)
        if any(t.dtype in FLOATING for t in tensors(op_def.input_arg, attrs)):
            dtypes.update(
                t.dtype
                for t in tensors(op_def.output_arg, attrs)
                if t.dtype is not None and t.dtype in FLOATING
            )
    return dtypes
