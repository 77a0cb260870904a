"""Values that the update of shared variables sends to replicas' own updates."""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.errors import StrategyError
from strategies.ir.graph import DType, Node, identity, producer, tensor
from strategies.ir.tensor_proto import const
from strategies.ir.train_graph import TrainGraph, UpdateValue
from strategies.ir.traversal import at_level, levels_of
from strategies.passes.task_plan import TaskPlan
from strategies.passes.tensor_queue import TensorQueue
from strategies.tf_bridge.op_types import output_type
from strategies.topology import UPDATER, Topology

_INT32 = DType("int32")
_WAITED_FOR = "handed/updated"


@dataclass(frozen=True, kw_only=True, slots=True)
class BroadcastUpdateValues:
    """Send values that replicas' own updates read from the updater's task to the other tasks.

    The graphs of other tasks do not contain the shared update: replicas there read the values sent to them,
    such as the norm of a sparse gradient instead of its rows. All replicas therefore compute a clipping
    factor from the same numbers.
    """

    name: ClassVar[str] = "broadcast-update-values"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        if not graph.update_values or topology.n_tasks == 1:
            return graph
        levels = [
            [value for value in graph.update_values if value.level == level]
            for level in sorted({value.level for value in graph.update_values})
        ]
        added: list[Node] = []
        if self.plan.task != UPDATER:
            tensors: dict[str, str] = {}
            for of_level in levels:
                queue = _queue(of_level, self.plan.task, topology)
                take = queue.take("take")
                added += [queue.handle, take]
                tensors |= {value.node: tensor(take.name, k) for k, value in enumerate(of_level)}
            nodes = [
                replace(node, inputs=(tensors[node.name],)) if node.name in tensors else node
                for node in graph.graph.nodes
            ]
            return replace(graph, graph=graph.graph.with_nodes([*nodes, *added]))
        gives = []
        for task, of_level in itertools.product(range(topology.n_tasks), levels):
            if task != UPDATER:
                queue = _queue(of_level, task, topology)
                give = queue.put("give", [value.node for value in of_level])
                added += [queue.handle, give]
                gives.append(give.name)
        return replace(
            graph,
            graph=graph.graph.with_nodes([*graph.graph.nodes, *added]),
            step_targets=(*graph.step_targets, *gives),
        )


def _queue(of_level: Sequence[UpdateValue], task: int, topology: Topology) -> TensorQueue:
    name = at_level(f"handed/worker_{task}", of_level[0].level)
    return TensorQueue.of(name, [value.dtype for value in of_level], topology.host_device(UPDATER))


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """Identities of the broadcast values, and the references of the captured step that they replace."""

    nodes: tuple[Node, ...]
    update_values: tuple[UpdateValue, ...]
    refs: dict[str, str]


def marked(graph: TrainGraph, own: Collection[str]) -> Marked:
    """Identities for nodes that exist once and that nodes of every replica read or wait for.

    A wait for a shared variable's gradient is not included: it means that the replica has computed its own.
    """
    by_name = graph.graph.by_name
    crossing = {n for b in graph.boundaries for n in (b.values, b.indices) if n is not None}
    levels = levels_of(graph.graph, crossing) if graph.n_levels > 1 else {}
    read: list[str] = []
    waited_for: dict[int, list[str]] = {}
    for ref in _shared_inputs(graph, own):
        name = producer(ref)
        if ref[0] != "^":
            read.append(ref)
        elif name not in crossing:
            waited_for.setdefault(max(levels.get(name, 1), 1), []).append(name)
    nodes: list[Node] = []
    update_values: list[UpdateValue] = []
    refs: dict[str, str] = {}
    for k, ref in enumerate(read):
        dtype = output_type(graph.graph, ref)
        if dtype is None:
            node = by_name[producer(ref)]
            raise StrategyError(
                f"node {node.name!r}: a value that one variable's update passes to another's must have a "
                f"known type, got {node.op}; use ps or all-reduce for all variables"
            )
        refs[ref] = f"handed/value_{k}"
        nodes.append(identity(refs[ref], ref, dtype))
        update_values.append(
            UpdateValue(node=refs[ref], dtype=dtype, level=max(levels.get(producer(ref), 1), 1))
        )
    for level, names in sorted(waited_for.items()):
        updated = at_level(_WAITED_FOR, level)
        done = const(f"{updated}/done", _INT32, 0)
        nodes += [done, identity(updated, done.name, _INT32, waits=names)]
        update_values.append(UpdateValue(node=updated, dtype=_INT32, level=level))
        refs |= {f"^{name}": f"^{updated}" for name in names}
    return Marked(nodes=tuple(nodes), update_values=tuple(update_values), refs=refs)


def _shared_inputs(graph: TrainGraph, own: Collection[str]) -> list[str]:
    """References of replicas' nodes to nodes that exist once, without batch and variables, each once."""
    apart = {b.node for b in graph.batch} | {v.handle for v in graph.variables}
    refs = (ref for node in graph.graph.nodes if node.name in own for ref in node.inputs)
    return [ref for ref in dict.fromkeys(refs) if producer(ref) not in own and producer(ref) not in apart]
