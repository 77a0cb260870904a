"""Levels of nodes: crossings that lie one after the other on the way to each."""

from collections.abc import Collection

from strategies.ir.graph import Graph, producer
from strategies.ir.traversal import topological_order


def levels_of(graph: Graph, marks: Collection[str]) -> dict[str, int]:
    """Node → marks on the longest way to it, itself included."""
    levels: dict[str, int] = {}
    for node in topological_order(graph.nodes):
        before = max((levels.get(producer(ref), 0) for ref in node.inputs), default=0)
        levels[node.name] = before + (node.name in marks)
    return levels


def at_level(name: str, level: int) -> str:
    """The name of an exchange, of the first level or of a later one in the same step."""
    return name if level == 1 else f"{name}/level_{level}"
