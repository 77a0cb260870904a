"""Rules that every graph keeps; passes are checked before TensorFlow sees the result."""

from collections.abc import Collection, Container, Iterator, Mapping

from strategies.errors import GraphError
from strategies.ir.graph import Attr, Function, Graph, Node, producer
from strategies.ir.traversal import COLOCATION_ATTR, called_functions, colocations, topological_order


def verify(graph: Graph) -> None:
    """Check a graph and its library: names, inputs, cycles, functions, colocations and results.

    Raises:
        GraphError: a rule is broken; the message names the first such node or function.
    """
    _verify_nodes(graph.nodes, graph.functions)
    present = graph.by_name
    for node in graph.nodes:
        if COLOCATION_ATTR in node.attrs:
            _verify_colocations(node, present)
    for name, function in graph.functions.items():
        try:
            _verify_function(name, function, graph.functions)
        except GraphError as error:
            raise GraphError(f"function {name!r}: {error}") from None


def _verify_nodes(
    nodes: Collection[Node], functions: Mapping[str, Function], arguments: Container[str] = frozenset()
) -> set[str]:
    names = _unique_names(nodes, arguments)
    checked: set[int] = set()
    for node in nodes:
        _verify_inputs(node, names, arguments)
        # Copies share their attributes, so that each mapping is checked once.
        if node.attrs and id(node.attrs) not in checked:
            checked.add(id(node.attrs))
            _verify_calls(f"node {node.name!r}", node.attrs, functions)
    topological_order(nodes)
    return names


def _unique_names(nodes: Collection[Node], arguments: Container[str]) -> set[str]:
    names: set[str] = set()
    for node in nodes:
        if not node.name or not node.op:
            raise GraphError(
                f"node {node.name!r} (op {node.op!r}): a node needs a name and an op; give it both"
            )
        if node.name in names or node.name in arguments:
            raise GraphError(f"node {node.name!r}: names are unique, got this twice; put a prefix before one")
        names.add(node.name)
    return names


def _verify_inputs(node: Node, names: Container[str], arguments: Container[str]) -> None:
    in_control = False
    for ref in node.inputs:
        if ref[:1] == "^":
            in_control = True
        elif in_control:
            raise GraphError(
                f"node {node.name!r}: control inputs come last, got tensor {ref!r} after one; swap them"
            )
        # Most references are only a name and need no parsing.
        if ref not in names and (not ref or (producer(ref) not in names and ref not in arguments)):
            raise GraphError(
                f"node {node.name!r}: input {ref!r} comes from no node here; add its producer or redirect it"
            )


def _verify_calls(owner: str, attrs: Mapping[str, Attr], functions: Mapping[str, Function]) -> None:
    for name in sorted(called_functions(attrs)):
        # Some ops use an empty name to call nothing.
        if name and name not in functions:
            raise GraphError(f"{owner}: calls function {name!r}, which is not in the library; keep or add it")


def _verify_colocations(node: Node, present: Container[str]) -> None:
    for name in colocations(node):
        if name not in present:
            raise GraphError(
                f"node {node.name!r}: colocated with {name!r}, which is not in the graph; drop the colocation"
            )


def _verify_function(name: str, function: Function, functions: Mapping[str, Function]) -> None:
    if function.name != name:
        raise GraphError(f"is in the library under this name but is called {function.name!r}; use one name")
    arguments = [arg.name for arg in function.inputs]
    if len(set(arguments)) < len(arguments):
        raise GraphError(f"argument names are unique, got {', '.join(arguments)}; rename one")
    names = _verify_nodes(function.nodes, functions, frozenset(arguments))
    _verify_calls("attributes", function.attrs, functions)
    for problem in _result_problems(function, names, set(arguments)):
        raise GraphError(problem)


def _result_problems(function: Function, names: Container[str], arguments: Container[str]) -> Iterator[str]:
    for arg in function.outputs:
        ref = function.results.get(arg.name)
        if ref is None:
            yield f"result {arg.name!r} has no tensor; add it to results"
        elif ref not in arguments and producer(ref) not in names:
            yield f"result {arg.name!r} is {ref!r}, which is not in the body; name an argument or a node"
    declared = {arg.name for arg in function.outputs}
    for name in function.results:
        if name not in declared:
            yield f"result {name!r} is not in the signature; declare it or drop it"
    for name, target in function.control_results.items():
        if target not in names:
            yield f"control result {name!r} is node {target!r}, which is not in the body; drop it"
