"""Conversion between function bodies and nodes of a graph.

A graph refers to an output by its number among all outputs of a node; a function body refers to it by the
op's name for it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from strategies.errors import GraphError
from strategies.ir.graph import Arg, DType, Function, Node, output_index, producer, tensor
from strategies.tf_bridge.op_types import op_definition, tensors, with_type_defaults

Library = Mapping[str, Function]
OUTPUT_SHAPES = "_output_shapes"
"""Attribute of an argument that gives TensorFlow its shape: a tuple of one shape."""


def function_of(
    name: str,
    nodes: Sequence[Node],
    *,
    inputs: Mapping[str, DType],
    results: Mapping[str, tuple[str, DType]],
    waits: Iterable[str],
    library: Library,
) -> Function:
    """Make a function whose body consists of nodes of a graph.

    Args:
        inputs: argument → type, in order; nodes refer to arguments by these names.
        results: result → its reference and type, in order.
        waits: nodes to run in each call.
        library: functions that nodes may call.
    Raises:
        GraphError: an op is unknown.
    """
    by_name = {node.name: node for node in nodes}
    places: dict[str, list[str]] = {}

    def written(ref: str) -> str:
        if ref[0] == "^" or producer(ref) in inputs:
            return ref
        source = producer(ref)
        if source not in places:
            places[source] = [
                f"{source}:{arg}:{number}" for arg, number in _outputs(by_name[source], library)
            ]
        return places[source][output_index(ref)]

    waited = tuple(dict.fromkeys(waits))
    return Function(
        name=name,
        inputs=tuple(Arg(name=arg, dtype=dtype) for arg, dtype in inputs.items()),
        outputs=tuple(Arg(name=result, dtype=dtype) for result, (_, dtype) in results.items()),
        nodes=tuple(node.changed(inputs=tuple(map(written, node.inputs))) for node in nodes),
        results={result: written(ref) for result, (ref, _) in results.items()},
        control_outputs=waited,
        control_results={node: node for node in waited},
    )


def body_of(function: Function, library: Library) -> tuple[tuple[Node, ...], Callable[[str], str]]:
    """Nodes of a function's body in a graph's form, without arguments, and a translation of references."""
    by_name = {node.name: node for node in function.nodes}
    places: dict[str, dict[tuple[str, int], int]] = {}

    def read(ref: str) -> str:
        source, _, output = ref.partition(":")
        if ref[0] == "^" or source not in by_name:
            return source
        if source not in places:
            outputs = _outputs(by_name[source], library)
            places[source] = {output: place for place, output in enumerate(outputs)}
        arg, _, number = output.partition(":")
        return tensor(source, places[source][arg, int(number or 0)])

    nodes = tuple(node.changed(inputs=tuple(map(read, node.inputs))) for node in function.nodes)
    return nodes, read


def _outputs(node: Node, library: Library) -> list[tuple[str, int]]:
    called = library.get(node.op)
    if called is not None:
        return [(arg.name, 0) for arg in called.outputs]
    op_def = op_definition(node.op)
    if op_def is None:
        raise GraphError(
            f"node {node.name!r}: its op must be one of this TensorFlow's, or a function, got {node.op!r}"
        )
    return [(t.arg, t.position) for t in tensors(op_def.output_arg, with_type_defaults(op_def, node.attrs))]
