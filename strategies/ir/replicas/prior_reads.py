"""Reads of variables before their updates, which could as well take values from elsewhere."""

from collections.abc import Collection

from strategies.ir.graph import Node, producer
from strategies.ir.resource_uses import resource_uses
from strategies.ir.train_graph import TrainGraph
from strategies.ir.traversal import ancestors, topological_order
from strategies.ir.variable import Variable

_READERS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"})


def prior_reads(step: TrainGraph, variables: Collection[Variable]) -> dict[str, tuple[str, ...]]:
    """Handle → nodes outside of updates that read it, of variables that are read before their updates only.

    A variable is not among them if a step reads it after one of its writes, or reads it by a node that needs
    the variable itself, such as a loop that writes it.
    """
    run = ancestors(step.graph, [*step.targets(), *step.returned()])
    outside = run - step.update_nodes() - {name for v in step.variables for name in v.access}
    written = _written_before(step, variables)
    found = {}
    for bit, v in enumerate(variables):
        users = [u for u in step.graph.consumers.get(v.handle, ()) if u.name in outside]
        if all(_takes_value(u, v.handle) and not written[u.name] >> bit & 1 for u in users):
            found[v.handle] = tuple(dict.fromkeys(u.name for u in users))
    return found


def _takes_value(node: Node, handle: str) -> bool:
    return node.op in _READERS and [k for k, ref in enumerate(node.data_inputs) if ref == handle] == [0]


def _written_before(step: TrainGraph, variables: Collection[Variable]) -> dict[str, int]:
    """Node → a bit for each of the variables, set where the node comes after a write of it."""
    uses = resource_uses(step.graph)
    loads = {v.load for v in step.variables}
    written: dict[str, int] = {}
    for bit, v in enumerate(variables):
        for write in uses[v.handle].writes:
            if write not in loads:
                written[write] = written.get(write, 0) | 1 << bit
    for node in topological_order(step.graph.nodes):
        bits = written.get(node.name, 0)
        for ref in node.inputs:
            bits |= written.get(producer(ref), 0)
        written[node.name] = bits
    return written
