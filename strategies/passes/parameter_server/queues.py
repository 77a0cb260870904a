"""Queues and tokens by which tasks wait for each other: no time-outs and no polling."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from strategies.errors import StrategyError
from strategies.ir.graph import Attr, DType, Node, Shape, producer
from strategies.ir.resource_uses import resource_uses
from strategies.ir.tensor_proto import const
from strategies.ir.train_graph import TrainGraph
from strategies.ir.traversal import descendants
from strategies.topology import UPDATER, Topology

INT32, INT64 = DType("int32"), DType("int64")
_SCALAR = Shape(())


@dataclass(frozen=True, slots=True)
class Queue:
    """Tensors that travel together between nodes, on any task, which find it by its shared name.

    Attributes:
        types: of the tensors that one element has.
    """

    handle: Node
    types: tuple[DType, ...]

    @classmethod
    def of(
        cls,
        name: str,
        types: Iterable[DType],
        device: str,
        *,
        capacity: int = -1,
        shapes: tuple[Shape, ...] = (),
    ) -> "Queue":
        """The queue of a name on a device.

        Args:
            capacity: elements that it holds at most; never full unless given.
            shapes: of the tensors; needed to put or take several elements at once.
        """
        types = tuple(types)
        attrs: dict[str, Attr] = {
            "component_types": types,
            "shapes": shapes,
            "capacity": capacity,
            "container": b"",
            "shared_name": name.encode(),
        }
        return cls(Node(name=name, op="FIFOQueueV2", attrs=attrs, device=device), types)

    @classmethod
    def of_numbers(cls, name: str, device: str) -> "Queue":
        """The queue of int64 scalars of a name on a device."""
        return cls.of(name, (INT64,), device, shapes=(_SCALAR,))

    @classmethod
    def of_tokens(cls, name: str, device: str) -> "Queue":
        """The queue of a name on a device that holds one token, an int32 scalar."""
        return cls.of(name, (INT32,), device, capacity=1, shapes=(_SCALAR,))

    def put(self, name: str, refs: Sequence[str], after: Iterable[str] = ()) -> Node:
        """A node that puts tensors in, as one element."""
        return self._node("QueueEnqueueV2", name, refs, after, {"Tcomponents": self.types, "timeout_ms": -1})

    def put_numbers(self, name: str, numbers: Sequence[int]) -> tuple[Node, Node]:
        """A constant and a node that puts its numbers in, as an element each."""
        values = const(f"{self.handle.name}/{name}_numbers", INT64, numbers, device=self.handle.device)
        attrs: dict[str, Attr] = {"Tcomponents": self.types, "timeout_ms": -1}
        return values, self._node("QueueEnqueueManyV2", name, [values.name], (), attrs)

    def take(self, name: str, after: Iterable[str] = ()) -> Node:
        """A node that takes an element out once there is one; its outputs are the tensors."""
        attrs: dict[str, Attr] = {"component_types": self.types, "timeout_ms": -1}
        return self._node("QueueDequeueV2", name, [], after, attrs)

    def take_rest(self, name: str, after: Iterable[str]) -> tuple[Node, Node]:
        """Nodes that take all elements out that are in; the latter has them."""
        size = self._node("QueueSizeV2", f"{name}_size", [], after, {})
        attrs: dict[str, Attr] = {"component_types": self.types, "timeout_ms": -1}
        return size, self._node("QueueDequeueManyV2", name, [size.name], (), attrs)

    def _node(
        self, op: str, name: str, data: Sequence[str], after: Iterable[str], attrs: dict[str, Attr]
    ) -> Node:
        node = Node(
            name=f"{self.handle.name}/{name}",
            op=op,
            inputs=(self.handle.name, *data),
            attrs=attrs,
            device=self.handle.device,
        )
        return node.waiting_for(*after)


def turn_queue(topology: Topology) -> Queue:
    """Holds the number of updates made; whoever has taken it out works on what servers hold, alone."""
    return Queue.of_numbers("turn", topology.host_device(UPDATER))


def waiting_for_turn(graph: TrainGraph, within: Container[str], take: str) -> tuple[Node, ...]:
    """All nodes of a step, of which those within that use shared variables wait for the turn.

    Without it, what no gradient reaches (a step counter) would be updated as soon as a run begins.
    """
    shared = [v for v in graph.variables if v.rank is None]
    handles = {v.handle for v in shared}
    # What sessions load and read by itself has no turn.
    by_itself = {name for v in shared for name in (v.read, v.load)}
    return tuple(
        node.waiting_for(take)
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
    queue = Queue.of_tokens(name, device)
    token = const(f"{name}/token", INT32, number, device=device)
    return queue.handle, token, queue.put("give", [token.name], after)


def await_token(name: str, device: str, after: Iterable[str]) -> tuple[Node, Node]:
    """Nodes that wait for a token once others have run; the last does."""
    queue = Queue.of_tokens(name, device)
    return queue.handle, queue.take("await", after)
