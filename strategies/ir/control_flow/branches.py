"""Branches within branches, where variables that they reach are on several devices."""

from collections.abc import Mapping
from dataclasses import replace

from strategies.ir.functions import BRANCHES, reachable_functions
from strategies.ir.graph import Function, Graph, Node, producer

LOWERING_ATTR = "_lower_using_switch_merge"


def spread_branches(graph: Graph) -> Graph:
    """The graph with branches taken apart that would need one device for variables of several.

    A branch in a function runs as one node; a branch of the graph that reaches variables of several devices
    (as a loss scale's, which holds the whole update) may hold others that do.
    """
    by_name = graph.by_name
    spread = [node for node in graph.nodes if node.op in BRANCHES and _reaches_several(node, by_name)]
    names = reachable_functions(spread, graph.functions)
    if not any(node.op in BRANCHES for name in names for node in graph.functions[name].nodes):
        return graph
    taken_apart = {name: _taken_apart(graph.functions[name]) for name in names}
    return replace(graph, functions={**graph.functions, **taken_apart})


def _reaches_several(node: Node, by_name: Mapping[str, Node]) -> bool:
    sources = [by_name[producer(ref)] for ref in node.inputs]
    return len({source.device for source in sources if source.op == "VarHandleOp"}) > 1


def _taken_apart(function: Function) -> Function:
    nodes = tuple(
        replace(node, attrs={**node.attrs, LOWERING_ATTR: True}) if node.op in BRANCHES else node
        for node in function.nodes
    )
    return replace(function, nodes=nodes)
