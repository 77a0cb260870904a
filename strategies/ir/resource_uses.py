"""Readers and writers of a resource, through identities, loops, branches and calls."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from strategies.ir.graph import Function, Graph, Node, producer
from strategies.ir.ops import FORWARDING_OPS, READ_OPS
from strategies.ir.traversal import called_functions

_WRITE_NOTHING = READ_OPS | FORWARDING_OPS


@dataclass(frozen=True, slots=True)
class Uses:
    """Nodes that use one handle, in graph order."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]


def called(graph: Graph, node: Node) -> tuple[Function, ...]:
    """Functions that a node calls."""
    names = sorted(called_functions(node.attrs) | {node.op})
    return tuple(graph.functions[name] for name in names if name in graph.functions)


def inputs_reaching(
    graph: Graph,
    node: Node,
    own: Callable[[Node], Collection[int]],
    through: Callable[[Node], bool],
    memo: dict[str, frozenset[int]],
) -> frozenset[int]:
    """Positions of inputs that reach certain inputs, of the node itself or of nodes in functions it calls.

    Args:
        own: function → positions of these inputs, for a node that calls no function.
        through: True for nodes whose outputs refer to the same resources as their inputs.
        memo: results per function, shared between calls.
    """
    functions = called(graph, node) if graph.functions else ()
    if not functions:
        return frozenset(own(node))
    n_inputs = len(node.data_inputs)
    return frozenset(
        position + n_inputs - len(function.inputs)
        for function in functions
        for position in _arguments_reaching(graph, function, own, through, memo)
    ).intersection(range(n_inputs))


def _arguments_reaching(
    graph: Graph,
    function: Function,
    own: Callable[[Node], Collection[int]],
    through: Callable[[Node], bool],
    memo: dict[str, frozenset[int]],
) -> frozenset[int]:
    if function.name in memo:
        return memo[function.name]
    memo[function.name] = frozenset()  # a recursive call adds nothing
    by_name = {node.name: node for node in function.nodes}
    waiting = [
        producer(node.data_inputs[position])
        for node in function.nodes
        for position in inputs_reaching(graph, node, own, through, memo)
    ]
    visited: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in visited:
            continue
        visited.add(name)
        if name in by_name and through(by_name[name]):
            waiting += map(producer, by_name[name].data_inputs)
    memo[function.name] = frozenset(i for i, arg in enumerate(function.inputs) if arg.name in visited)
    return memo[function.name]


def written_inputs(
    graph: Graph, node: Node, resources: frozenset[int], memo: dict[str, frozenset[int]]
) -> frozenset[int]:
    """Positions, among `resources`, of inputs that a node writes."""
    return resources & inputs_reaching(graph, node, _own_writes, _forwards, memo)


def _own_writes(node: Node) -> Collection[int]:
    return () if node.op in _WRITE_NOTHING else range(len(node.data_inputs))


def _forwards(node: Node) -> bool:
    return node.op in FORWARDING_OPS


def resource_uses(graph: Graph) -> Mapping[str, Uses]:
    """VarHandleOp or table → its readers and writers."""
    origin = {
        node.name: node.name
        for node in graph.nodes
        if node.op in ("VarHandleOp", "HashTableV2", "MutableHashTableV2")
    }
    reads: dict[str, list[str]] = {name: [] for name in origin}
    writes: dict[str, list[str]] = {name: [] for name in origin}
    memo: dict[str, frozenset[int]] = {}
    for node in graph.nodes:
        if origin.keys().isdisjoint(map(producer, node.inputs)):
            continue
        sources = {
            k: origin[producer(ref)] for k, ref in enumerate(node.data_inputs) if producer(ref) in origin
        }
        if not sources:
            continue
        if node.op in FORWARDING_OPS:
            origin[node.name] = next(iter(sources.values()))
            continue
        written = {sources[k] for k in written_inputs(graph, node, frozenset(sources), memo)}
        for handle in dict.fromkeys(sources.values()):
            (writes if handle in written else reads)[handle].append(node.name)
    return {name: Uses(tuple(reads[name]), tuple(writes[name])) for name in writes}
