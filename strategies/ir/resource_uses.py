"""Readers and writers of a resource, through identities, loops, branches and calls."""

from collections.abc import Mapping
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


def written_arguments(
    graph: Graph, function: Function, memo: dict[str, frozenset[int]] | None = None
) -> frozenset[int]:
    """Positions of arguments that a function writes, directly or by calls."""
    memo = {} if memo is None else memo
    if function.name in memo:
        return memo[function.name]
    memo[function.name] = frozenset()  # a function that reaches itself adds nothing of its own
    origin = {arg.name: i for i, arg in enumerate(function.inputs) if arg.dtype == "resource"}
    written: set[int] = set()
    for node in function.nodes:
        sources = {
            k: origin[producer(ref)] for k, ref in enumerate(node.data_inputs) if producer(ref) in origin
        }
        if not sources:
            continue
        if node.op in FORWARDING_OPS:
            origin[node.name] = next(iter(sources.values()))
        written |= {sources[k] for k in written_inputs(graph, node, frozenset(sources), memo)}
    memo[function.name] = frozenset(written)
    return memo[function.name]


def written_inputs(
    graph: Graph, node: Node, resources: frozenset[int], memo: dict[str, frozenset[int]]
) -> frozenset[int]:
    """Positions, among `resources`, of inputs that a node writes."""
    if node.op in _WRITE_NOTHING:
        return frozenset()
    functions = called(graph, node)
    if functions:
        n_inputs = len(node.data_inputs)
        return resources & {
            position + n_inputs - len(function.inputs)
            for function in functions
            for position in written_arguments(graph, function, memo)
        }
    return resources


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
