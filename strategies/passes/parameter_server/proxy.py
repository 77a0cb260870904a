"""Reads of remote variables from one copy on the reader's host."""

from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.ir.graph import Node, identity, read_variable
from strategies.ir.replica_updates import late_nodes
from strategies.ir.train_graph import TrainGraph
from strategies.ir.traversal import levels_of
from strategies.ir.variable import Variable
from strategies.passes.task_plan import TaskPlan
from strategies.topology import Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class ProxyVariables:
    """Send each of these variables to this task once per step, for all of its replicas.

    The copy is refreshed in every step, which starts after the preceding update: it is never older than the
    variable. The replicas' own reads become reads of the copy, under their names.
    """

    name: ClassVar[str] = "proxy-variables"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        if len(topology.local_replicas(self.plan.task)) == 1:
            return graph
        shared = [v for v in graph.variables if v.rank is None]
        variables = {v.handle: v for v in shared if v.name in self.plan.proxies}
        host = topology.host_device(self.plan.task)
        apart = late_nodes(graph, shared) | graph.update_nodes()
        apart |= {name for v in variables.values() for name in (v.read, v.load)}
        # Values read after the step's own update must be read again.
        crossing = {n for b in graph.boundaries for n in (b.values, b.indices) if n is not None}
        apart |= {name for name, level in levels_of(graph.graph, crossing).items() if level > 0}
        copies: dict[str, tuple[Node, Node]] = {}
        nodes: list[Node] = []
        for node in graph.graph.nodes:
            if node.op != "ReadVariableOp" or node.inputs[0] not in variables or node.name in apart:
                nodes.append(node)
                continue
            handle = node.inputs[0]
            if handle not in copies:
                copies[handle] = _copy(variables[handle], host)
            copy = copies[handle][1]
            nodes.append(
                replace(node, op="Identity", inputs=(copy.name,), attrs={"T": variables[handle].dtype})
            )
        if not copies:
            return graph
        added = (node for pair in copies.values() for node in pair)
        return replace(graph, graph=graph.graph.with_nodes([*nodes, *added]))


def _copy(v: Variable, host: str) -> tuple[Node, Node]:
    read = read_variable(f"proxies/{v.handle}/read", v.handle, v.dtype, host)
    return read, identity(f"proxies/{v.handle}", read.name, v.dtype, host)
