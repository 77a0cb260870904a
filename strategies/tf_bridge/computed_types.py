"""The floating types that a captured step's forward and backward pass compute in."""

from collections.abc import Iterable, Mapping

from strategies.ir.functions import reachable_functions
from strategies.ir.graph import DType, Function, Node, producer
from strategies.ir.train_graph import TrainGraph
from strategies.tf_bridge.op_types import op_definition, tensors, with_type_defaults

FLOATING = frozenset({"half", "bfloat16", "float", "double", "complex64", "complex128"})
# They pass on what they are given, or fetch it: nothing is rounded.
_PASSING = frozenset(
    {"Identity", "IdentityN", "Placeholder", "Const", "StopGradient", "Reshape", "Switch", "Merge"}
)


def computed_types(step: TrainGraph) -> frozenset[DType]:
    """Floating types of what nodes outside of the update make of other floating tensors.

    What only becomes whole numbers or truth values does not count, such as scores that a metric takes the
    largest of: its rounding comes back in no floating number.
    """
    update = step.update_nodes()
    outside = [node for node in step.graph.nodes if node.name not in update]
    functions = step.graph.functions
    bodies = [functions[name] for name in reachable_functions(outside, functions)]
    returned = [{producer(ref) for ref in body.results.values()} for body in bodies]
    return _rounded_to(outside, functions, step.returned()).union(
        *(_rounded_to(body.nodes, functions, kept) for body, kept in zip(bodies, returned, strict=True))
    )


def _rounded_to(
    nodes: Iterable[Node], functions: Mapping[str, Function], returned: Iterable[str]
) -> frozenset[DType]:
    """Floating types of what these nodes make of floating tensors.

    Args:
        returned: nodes whose tensors are used elsewhere too.
    """
    nodes = tuple(nodes)
    used = set(returned)
    discarded = set()
    for node in nodes:
        takes = {producer(ref) for ref in node.inputs if not ref.startswith("^")}
        if _makes_floating(node, functions):
            used |= takes
        else:
            discarded |= takes
    made = (_floating_outputs(n, functions) for n in nodes if n.name in used or n.name not in discarded)
    return frozenset[DType]().union(*made)


def _makes_floating(node: Node, functions: Mapping[str, Function]) -> bool:
    """Whether floating numbers may come of what a node is given."""
    op_def = None if node.op in functions else op_definition(node.op)
    if op_def is None:
        return True
    made = list(tensors(op_def.output_arg, with_type_defaults(op_def, node.attrs)))
    return not made or any(t.dtype is None or t.dtype in FLOATING for t in made)


def _floating_outputs(node: Node, functions: Mapping[str, Function]) -> set[DType]:
    op_def = None if node.op in _PASSING or node.op in functions else op_definition(node.op)
    if op_def is None:
        return set()
    attrs = with_type_defaults(op_def, node.attrs)
    if not any(t.dtype in FLOATING for t in tensors(op_def.input_arg, attrs)):
        return set()
    return {t.dtype for t in tensors(op_def.output_arg, attrs) if t.dtype is not None and t.dtype in FLOATING}
