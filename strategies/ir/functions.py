"""The function library of a graph: which functions nodes call, directly or through others."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from strategies.ir.graph import Attr, Function, FunctionRef, Graph, Node

LOOPS = frozenset({"While", "StatelessWhile"})
BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
CALLS = LOOPS | BRANCHES | {"PartitionedCall", "StatefulPartitionedCall"}
"""Calls whose functions TensorFlow lays into the graph, node by node."""
_HOLDERS = (tuple, FunctionRef)


def called_functions(attrs: Mapping[str, Attr]) -> set[str]:
    """Names of the functions that attributes refer to, in lists and in bound attributes as well."""
    names: set[str] = set()
    # Of the attributes of a graph, hardly any can hold a reference.
    waiting = [attr for attr in attrs.values() if isinstance(attr, _HOLDERS)]
    while waiting:
        attr = waiting.pop()
        if isinstance(attr, FunctionRef):
            names.add(attr.name)
            attr = tuple(attr.attrs.values())
        waiting += [item for item in attr if isinstance(item, _HOLDERS)]
    return names


def reachable_functions(nodes: Iterable[Node], functions: Mapping[str, Function]) -> set[str]:
    """Names of the functions that nodes call, as their op or by attribute, directly or through others."""
    reachable: set[str] = set()
    waiting = [nodes]
    seen: set[int] = set()
    while waiting:
        for node in waiting.pop():
            called = {node.op}
            if id(node.attrs) not in seen:
                seen.add(id(node.attrs))
                called |= called_functions(node.attrs)
            for name in called:
                if name in functions and name not in reachable:
                    reachable.add(name)
                    waiting.append(functions[name].nodes)
    return reachable


def functions_reaching(functions: Mapping[str, Function], sought: Callable[[Node], bool]) -> set[str]:
    """Names of the functions with such a node, or that call one which has it, directly or through others."""
    callers: dict[str, list[str]] = {}
    waiting = []
    for name, function in functions.items():
        called = {node.op for node in function.nodes}.union(
            *(called_functions(n.attrs) for n in function.nodes)
        )
        for callee in called & functions.keys():
            callers.setdefault(callee, []).append(name)
        if any(map(sought, function.nodes)):
            waiting.append(name)
    reaching: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in reaching:
            reaching.add(name)
            waiting += callers.get(name, ())
    return reaching


def renamed_functions(node: Node, renamed: Mapping[str, str]) -> Node:
    """The node with other functions in place of those that it calls, as its op or by attribute.

    Returns:
        The same object when it calls none of them.
    """
    if not renamed:
        return node
    op = renamed.get(node.op, node.op)
    attrs = {key: _renamed(value, renamed) for key, value in node.attrs.items()}
    return node if (op, attrs) == (node.op, node.attrs) else replace(node, op=op, attrs=attrs)


def _renamed(value: Attr, renamed: Mapping[str, str]) -> Attr:
    if isinstance(value, FunctionRef):
        attrs = {key: _renamed(bound, renamed) for key, bound in value.attrs.items()}
        return replace(value, name=renamed.get(value.name, value.name), attrs=attrs)
    if isinstance(value, tuple):
        return tuple(_renamed(item, renamed) for item in value)
    return value


def drop_unreachable_functions(graph: Graph) -> Graph:
    """The graph without functions that no node calls; the same object when all are called."""
    reachable = reachable_functions(graph.nodes, graph.functions)
    if len(reachable) == len(graph.functions):
        return graph
    return replace(graph, functions={name: f for name, f in graph.functions.items() if name in reachable})
