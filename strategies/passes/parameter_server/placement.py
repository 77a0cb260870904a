"""Devices of variables and updates that replicas share."""

import operator
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from strategies.ir.graph import DType, Graph, Node, identity, producer
from strategies.ir.ops import CALLS
from strategies.ir.train_graph import TrainGraph
from strategies.ir.traversal import COLOCATION_ATTR, called_functions, topological_order
from strategies.passes.task_plan import TaskPlan
from strategies.topology import Topology

_SEVERAL: Final = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Place each shared variable, its slots and its update on its server, and the rest on this task's host.

    An update node runs on the server whose gradient or variable it reads. A node that combines several
    servers' values (a global norm) runs on the first server; reading such a combination does not move a node
    from its own server. A loop or branch reads values of a server from a copy on its own device: TensorFlow
    would otherwise fetch a loop's values anew in every iteration.
    """

    name: ClassVar[str] = "placement"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        places = self._places(graph)
        host = topology.host_device(self.plan.task)
        shared = {v.handle for v in graph.variables if v.rank is None}
        by_name = graph.graph.by_name
        own = {v.handle: by_name[v.handle].device for v in graph.variables if v.rank is not None}
        nodes: list[Node] = []
        arrived: dict[str, Node] = {}
        for node in graph.graph.nodes:
            device = node.device
            if device and _touches(node, shared):
                # A variable is read on its own device, and the value is sent.
                device = topology.host_device(max(places[producer(node.inputs[0])], 0))
                if device != node.device and isinstance(node.attrs.get("dtype"), DType):
                    arrived[node.name] = _copy(node)
            if not device and _touches(node, own):
                device = own[producer(node.inputs[0])]
            if not device:
                place = places.get(node.name)
                device = host if place is None else topology.host_device(max(place, 0))
            nodes.append(_placed(node, device))
        nodes = _with_copies(nodes, arrived)
        if len(nodes) == len(graph.graph.nodes) and all(map(operator.is_, nodes, graph.graph.nodes)):
            return graph
        return replace(graph, graph=graph.graph.with_nodes(nodes))

    def _places(self, graph: TrainGraph) -> dict[str, int]:
        """Node → task, for nodes of shared variables; `_SEVERAL` if a node combines several tasks' values."""
        places: dict[str, int] = {}
        for v in graph.variables:
            if v.rank is None:
                # A variable that all updates read (a learning rate) does not decide their server.
                common = v.kind == "slot" and v.slot_of is None
                place = _SEVERAL if common else self.plan.destinations[v.name]
                places |= dict.fromkeys(v.access, place)
        for b in graph.boundaries:
            if b.rank is None:
                places |= dict.fromkeys(
                    (n for n in (b.values, b.indices) if n), self.plan.destinations[b.variable]
                )
        handles = {v.handle for v in graph.variables}
        shared = graph.update_nodes().union(graph.state_targets, places)
        # Variables of one replica are on its device already.
        affected = graph.graph.with_nodes(
            n for n in graph.graph.nodes if n.name in shared and (n.name in places or not n.device)
        )
        order = [n for n in topological_order(affected.nodes) if n.name not in places]
        for node in order:
            met = _meet(node, places, handles)
            if met is not None:
                places[node.name] = met
        self._follow_consumers(affected, order, places)
        return places

    def _follow_consumers(self, graph: Graph, order: list[Node], places: dict[str, int]) -> None:
        for node in reversed(order):
            if node.name not in places:
                read_by = {places[c.name] for c in graph.consumers.get(node.name, ()) if c.name in places}
                places[node.name] = read_by.pop() if len(read_by) == 1 else _SEVERAL


def _touches(node: Node, handles: Container[str]) -> bool:
    return bool(node.inputs) and producer(node.inputs[0]) in handles and not called_functions(node.attrs)


def _copy(read: Node) -> Node:
    return identity(f"{read.name}/arrived", read.name, read.attrs["dtype"], read.device)


def _with_copies(nodes: list[Node], arrived: Mapping[str, Node]) -> list[Node]:
    used: dict[str, Node] = {}
    rewritten: list[Node] = []
    for node in nodes:
        copies = {name: arrived[name] for name in node.inputs if name in arrived} if node.op in CALLS else {}
        used |= copies
        inputs = tuple(copies[ref].name if ref in copies else ref for ref in node.inputs)
        rewritten.append(replace(node, inputs=inputs) if copies else node)
    return [*rewritten, *used.values()] if used else nodes


def _meet(node: Node, places: Mapping[str, int], handles: set[str]) -> int | None:
    inputs = [producer(ref) for ref in node.data_inputs]
    for name in inputs:
        if name in handles:
            return places.get(name)
    met = {places[name] for name in inputs if name in places}
    single = met - {_SEVERAL}
    if len(single) == 1:
        return single.pop()
    return _SEVERAL if met else None


def _placed(node: Node, device: str) -> Node:
    if node.device == device and COLOCATION_ATTR not in node.attrs:
        return node
    # Every node has a device now, which a colocation could only contradict.
    return node.without_attrs(COLOCATION_ATTR).changed(device=device)
