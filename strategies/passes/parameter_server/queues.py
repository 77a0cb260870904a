"""Queues and tokens by which tasks wait for each other: no time-outs and no polling."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from strategies.errors import StrategyError
from strategies.ir.graph import Attr, Node, Shape, producer
from strategies.ir.resource_uses import resource_uses
from strategies.ir.tensor_proto import const
from strategies.ir.train_graph import TrainGraph
from strategies.ir.traversal import descendants
from strategies.passes.parameter_server.accumulator import INT32, INT64
from strategies.topology import UPDATER, Topology


@dataclass(frozen=True, slots=True)
class Queue:
    """Whole numbers on their way between tasks, which find it by its shared name; it is never full."""

    handle: Node

    @classmethod
    def of(cls, name: str, device: str) -> "Queue":
        """The queue of a name on a device."""
        attrs: dict[str, Attr] = {
            "component_types": (INT64,),
            "shapes": (Shape(()),),
            "capacity": -1,
            "container": b"",
            "shared_name": name.encode(),
        }
        return cls(Node(name=name, op="FIFOQueueV2", attrs=attrs, device=device))

    def put(self, name: str, number: str, after: Iterable[str] = ()) -> Node:
        """A node that puts a number in."""
        return self._node(
            "QueueEnqueueV2", name, [number], after, {"Tcomponents": (INT64,), "timeout_ms": -1}
        )

    def put_all(self, name: str, numbers: Sequence[int]) -> tuple[Node, Node]:
        """A constant and a node that puts its numbers in."""
        values = const(f"{self.handle.name}/{name}_numbers", INT64, numbers, device=self.handle.device)
        attrs: dict[str, Attr] = {"Tcomponents": (INT64,), "timeout_ms": -1}
        return values, self._node("QueueEnqueueManyV2", name, [values.name], (), attrs)

    def take(self, name: str, after: Iterable[str] = ()) -> Node:
        """A node that takes a number out, once there is one."""
        return self._node("QueueDequeueV2", name, [], after, {"component_types": (INT64,), "timeout_ms": -1})

    def take_rest(self, name: str, after: Iterable[str]) -> tuple[Node, Node]:
        """Nodes that take all numbers out that are in; the latter has them."""
        size = self._node("QueueSizeV2", f"{name}_size", [], after, {})
        attrs: dict[str, Attr] = {"component_types": (INT64,), "timeout_ms": -1}
        return size, self._node("QueueDequeueManyV2", name, [size.name], (), attrs)

    def _node(
        self, op: str, name: str, data: Sequence[str], after: Iterable[str], attrs: dict[str, Attr]
    ) -> Node:
        waits = (f"^{node}" for node in after)
        return Node(
            name=f"{self.handle.name}/{name}",
            op=op,
            inputs=(self.handle.name, *data, *waits),
            attrs=attrs,
            device=self.handle.device,
        )


def turn_queue(topology: Topology) -> Queue:
    """Holds the number of updates made; whoever has taken it out works on what servers hold, alone."""
    return Queue.of("turn", topology.host_device(UPDATER))


def waiting_for_turn(graph: TrainGraph, within: Container[str], take: str) -> tuple[Node, ...]:
    """All nodes of a step, of which those within that use shared variables wait for the turn.

    Without it, what no gradient reaches (a step counter) would be updated as soon as a run begins.
    """
    shared = [v for v in graph.variables if v.rank is None]
    handles = {v.handle for v in shared}
    # What sessions load and read by itself has no turn.
    by_itself = {name for v in shared for name in (v.read, v.load)}
    return tuple(
        replace(node, inputs=(*node.inputs, f"^{take}"))
        if node.name in within and node.name not in by_itself and not handles.isdisjoint(node.data_inputs)
        else node
        for node in graph.graph.nodes
    )


def on_servers(
    graph: TrainGraph, targets: Iterable[str], destinations: Mapping[str, int], topology: Topology
) -> Iterator[tuple[str, str]]:
    """Nodes with the devices of the variables that they assign, which are not placed yet."""
    served = {v.handle: destinations.get(v.name, UPDATER) for v in graph.variables if v.rank is None}
    for target in targets:
        used = (served[ref] for ref in graph.graph.by_name[target].data_inputs if ref in served)
        yield target, topology.host_device(next(used, UPDATER))


def check_gradients_come_first(graph: TrainGraph, knob: str) -> None:
    """Refuse a step that computes gradients from variables which it has updated.

    Raises:
        StrategyError: for the first such gradient.
    """
    uses = resource_uses(graph.graph)
    loads = {v.load for v in graph.variables}
    writes = {w for v in graph.variables if v.rank is None for w in uses[v.handle].writes if w not in loads}
    late = descendants(graph.graph, writes)
    for boundary in graph.boundaries:
        if any(producer(c.values) in late for c in boundary.contributions):
            raise StrategyError(
                f"variable {boundary.variable!r}: {knob} needs all gradients before the first update, got "
                "one after it; leave it out"
            )


def give_token(name: str, number: int, device: str, after: Iterable[str]) -> tuple[Node, Node, Node]:
    """Nodes that put a token into a queue once others have run; the last does.

    Args:
        name: of the queue, which the other task finds by it. device: of the queue.
    """
    queue = _queue(name, device)
    token = const(f"{name}/token", INT32, number, device=device)
    attrs: dict[str, Attr] = {"Tcomponents": (INT32,), "timeout_ms": -1}
    inputs = (name, token.name, *(f"^{node}" for node in after))
    return (
        queue,
        token,
        Node(name=f"{name}/give", op="QueueEnqueueV2", inputs=inputs, attrs=attrs, device=device),
    )


def await_token(name: str, device: str, after: Iterable[str]) -> tuple[Node, Node]:
    """Nodes that wait for a token once others have run; the last does."""
    attrs: dict[str, Attr] = {"component_types": (INT32,), "timeout_ms": -1}
    inputs = (name, *(f"^{node}" for node in after))
    wait = Node(name=f"{name}/await", op="QueueDequeueV2", inputs=inputs, attrs=attrs, device=device)
    return _queue(name, device), wait


def _queue(name: str, device: str) -> Node:
    attrs: dict[str, Attr] = {
        "component_types": (INT32,),
        "shapes": (Shape(()),),
        "capacity": 1,
        "container": b"",
        "shared_name": name.encode(),
    }
    return Node(name=name, op="FIFOQueueV2", attrs=attrs, device=device)
