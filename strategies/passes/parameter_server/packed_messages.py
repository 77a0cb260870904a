"""Pack small values between a worker and a server into one message, to save the cost per message."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from strategies.ir.graph import DType, Node, Shape, element_bytes, n_elements, producer
from strategies.ir.resource_uses import resource_uses
from strategies.ir.train_graph import Boundary, Contribution, TrainGraph
from strategies.ir.traversal import ancestors, at_level
from strategies.ir.variable import Variable
from strategies.numerics.collectives import apart, joined
from strategies.passes.replicate.rewire import contribute
from strategies.passes.task_plan import TaskPlan
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Topology

_Key = TypeVar("_Key")
_Members = TypeVar("_Members", bound=Sized)

SMALL_BYTES = 64 << 10
# Accumulators accept other types only after a cast of each value.
_PUSHED = ("half", "float", "double")


@dataclass(frozen=True, kw_only=True, slots=True)
class PackPushes:
    """Send a server all small dense gradients of a type, and new forward state, in one message.

    Packs only values of one level: values that depend on an update wait for the gradients before it.
    """

    name: ClassVar[str] = "pack-pushes"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        encoded = self.plan.compressions("servers")
        messages: defaultdict[tuple[int, int, DType], list[Boundary]] = defaultdict(list)
        for b in graph.boundaries:
            if b.variable not in encoded and self._is_packed(b):
                messages[b.level, self.plan.destinations[b.variable], b.dtype].append(b)
        added: list[Node] = []
        combined: dict[str, Contribution] = {}
        for (level, server, dtype), members in _of_several(messages):
            nodes, arrived = _in_one_message(
                at_level(f"push/server_{server}_{dtype}", level),
                [b.contributions[0].values for b in members],
                [b.shape for b in members],
                dtype,
                devices=(topology.host_device(self.plan.task), topology.host_device(server)),
            )
            added += nodes
            for b, values in zip(members, arrived, strict=True):
                combined[b.values] = replace(b.contributions[0], values=values)
        return contribute(graph, combined, added)

    def _is_packed(self, b: Boundary) -> bool:
        if self.plan.aggregation is not None and b.role == "gradient":
            # They are sent as the vector of the rule.
            return False
        sent = b.rank is None and b.contributions and self.plan.destinations[b.variable] != self.plan.task
        plain = b.indices is None and b.dtype in _PUSHED
        return bool(sent and plain and _is_small(b.shape, b.dtype))


@dataclass(frozen=True, kw_only=True, slots=True)
class PackPulls:
    """Let a server send all small variables of a type that are read at the start of a step in one message.

    Packs only reads that wait for nothing: a later read may wait for a node that others need first.
    """

    name: ClassVar[str] = "pack-pulls"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        task_of = {replica.device: replica.task for replica in topology.replicas()}
        task_of |= {topology.host_device(task): task for task in range(topology.n_tasks)}
        # Values read once before the first step, or outside of steps, are not sent in each step.
        losses = (producer(loss.tensor) for loss in graph.losses)
        in_step = ancestors(graph.graph, (*graph.targets(), *losses))
        messages: defaultdict[tuple[str, str, DType], dict[str, Shape]] = defaultdict(dict)
        for read, v in _small_reads(graph):
            for user in graph.graph.consumers.get(read.name, ()):
                elsewhere = task_of.get(user.device, task_of[read.device]) != task_of[read.device]
                if elsewhere and user.name in in_step and read.name in user.data_inputs:
                    messages[read.device, user.device, v.dtype][read.name] = v.shape
        added: list[Node] = []
        arrived: defaultdict[str, dict[str, str]] = defaultdict(dict)
        for k, ((server, device, dtype), shapes) in enumerate(_of_several(messages)):
            nodes, values = _in_one_message(
                f"pull/message_{k}_{dtype}",
                list(shapes),
                list(shapes.values()),
                dtype,
                devices=(server, device),
            )
            added += nodes
            arrived[device] |= zip(shapes, values, strict=True)
        if not added:
            return graph
        readers = (
            _reading(node, arrived[node.device]) if node.name in in_step else node
            for node in graph.graph.nodes
        )
        return replace(graph, graph=graph.graph.with_nodes((*readers, *added)))


def _small_reads(graph: TrainGraph) -> Iterator[tuple[Node, Variable]]:
    by_name, uses = graph.graph.by_name, resource_uses(graph.graph)
    for v in graph.variables:
        if v.rank is None and _is_small(v.shape, v.dtype):
            reads = (by_name[name] for name in uses[v.handle].reads)
            yield from (
                (read, v) for read in reads if read.op == "ReadVariableOp" and read.inputs == (v.handle,)
            )


def _is_small(shape: Shape, dtype: DType) -> bool:
    if shape.dims is None or -1 in shape.dims:
        return False
    return n_elements(shape.dims) * element_bytes(dtype) <= SMALL_BYTES


def _of_several(messages: Mapping[_Key, _Members]) -> Iterator[tuple[_Key, _Members]]:
    """Messages with more than one value; a single value is sent unpacked."""
    return ((key, members) for key, members in messages.items() if len(members) > 1)


def _in_one_message(
    name: str, values: Sequence[str], shapes: Sequence[Shape], dtype: DType, *, devices: tuple[str, str]
) -> tuple[tuple[Node, ...], tuple[str, ...]]:
    there = tuple(shape.dims for shape in shapes)
    specs = tuple(TensorSpec(dtype=dtype, shape=shape) for shape in shapes)
    sent, (vector,) = trace(joined, specs).splice(f"{name}/joined/", values, device=devices[0])
    whole = TensorSpec(dtype=dtype, shape=Shape((sum(n_elements(dims or ()) for dims in there),)))
    unpacked, arrived = trace(apart, (whole,), shapes=there).splice(
        f"{name}/apart/", [vector], device=devices[1]
    )
    # Messages are not computation: keep them out of XLA's compiled clusters.
    outside = (node.changed(attrs={**node.attrs, "_XlaCompile": False}) for node in (*sent, *unpacked))
    return tuple(outside), arrived


def _reading(node: Node, arrived: Mapping[str, str]) -> Node:
    if arrived.keys().isdisjoint(node.inputs):
        return node
    return node.changed(inputs=tuple(arrived.get(ref, ref) for ref in node.inputs))
