"""One read per variable and step: merge equal reads, and move reads out of loops, branches and calls.

Loops and branches are function calls, or (TensorFlow 1) nodes behind Enter and Switch.
"""

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

from strategies.ir.graph import DType, Graph, Node, Shape, after, producer, read_variable
from strategies.ir.ops import CALLS
from strategies.ir.replica_updates import after_updates
from strategies.ir.resource_uses import resource_uses
from strategies.ir.train_graph import TrainGraph
from strategies.ir.traversal import drop_unreachable_functions
from strategies.passes.replicate.value_arguments import TAKERS, Use, ValueArguments, graph_ref, tensor_uses
from strategies.passes.task_plan import TaskPlan
from strategies.topology import Topology

Value: TypeAlias = tuple[DType, Shape]
"""Type and shape of a variable's value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HoistReads:
    """Merge a variable's reads before its first write, and read it outside of functions that only read it.

    A parameter server then sends each variable once per replica and step, however many layers, iterations or
    branches read it. Reads that wait for a write are not moved.
    """

    name: ClassVar[str] = "hoist-reads"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:  # noqa: ARG002 - the form of every pass
        return hoisted(graph)


def hoisted(step: TrainGraph) -> TrainGraph:
    """The step with one read per variable; the same object if nothing changes."""
    values = {v.handle: (v.dtype, v.shape) for v in step.variables if v.rule != "per-replica"}
    left_alone = step.update_nodes() | {name for v in step.variables for name in (v.read, v.load)}
    left_alone |= after_updates(step, step.variables)
    graph = _hoist(step.graph, values, left_alone, {v.load for v in step.variables})
    merged = _merge_reads(graph, values, left_alone)
    return step if merged is step.graph else replace(step, graph=merged)


def calls_with_values(graph: Graph, values: Mapping[str, Value], calls: Collection[str]) -> Graph:
    """Let calls take values of the variables that they only read; the reads run when the calls would.

    Args:
        values: handle → type and shape of its variable. calls: names of these calls.
    """
    return _hoist(graph, values, frozenset(), (), calls=calls)


def _merge_reads(graph: Graph, handles: Collection[str], left_alone: Collection[str]) -> Graph:
    first_reads: dict[str, str] = {}
    renamed: dict[str, str] = {}
    for node in graph.nodes:
        if node.op == "ReadVariableOp" and node.name not in left_alone and node.inputs[0] in handles:
            first = first_reads.setdefault(node.inputs[0], node.name)
            if first != node.name:
                renamed[node.name] = first
    if not renamed:
        return graph
    own = {read: handle for handle, read in first_reads.items() if read in renamed.values()}
    return graph.with_nodes(
        # A wait of the remaining read could itself wait for a read that is merged into it.
        replace(node, inputs=(own[node.name],)) if node.name in own else _followed(node, renamed)
        for node in graph.nodes
        if node.name not in renamed
    )


def _followed(node: Node, renamed: Mapping[str, str]) -> Node:
    if renamed.keys().isdisjoint(map(producer, node.inputs)):
        return node
    data = [renamed.get(producer(ref), ref) for ref in node.data_inputs]
    # A node may read one tensor twice but wait for a node only once.
    waits = dict.fromkeys(renamed.get(name, name) for name in node.control_inputs)
    return replace(node, inputs=(*data, *after(waits)))


def _hoist(
    graph: Graph,
    values: Mapping[str, Value],
    left_alone: AbstractSet[str],
    loads: Collection[str],
    *,
    calls: Collection[str] | None = None,
) -> Graph:
    """Let calls, loops and branches take values of the variables that they only read.

    Args:
        calls: calls to change, whose reads wait for the same nodes as the calls; None changes all, with reads
            before all writes.
    """
    if not any(node.op in TAKERS for node in graph.nodes):
        return graph
    arguments = ValueArguments(graph)
    carried = _carried(graph, arguments, values, left_alone, calls)
    if not carried:
        return graph
    nodes: list[Node] = []
    before_loops: dict[str, list[str]] = {}
    for node in graph.nodes:
        reads: dict[int, Node] = {}
        hoisted: dict[int, Value] = {}
        for k, ref in enumerate(node.data_inputs):
            if ref in values and (node.name, k) in carried:
                hoisted[k] = values[ref]
                waits = () if calls is None else node.control_inputs
                reads[k] = read_variable(f"{node.name}/hoisted_{k}", ref, values[ref][0], node.device, waits)
                if node.op not in CALLS:
                    before_loops.setdefault(ref, []).append(reads[k].name)
            elif ref in carried:
                hoisted[k] = values[carried[ref]]
        if not hoisted:
            nodes.append(node)
            continue
        nodes += reads.values()
        inputs = tuple(reads[k].name if k in reads else ref for k, ref in enumerate(node.inputs))
        nodes += arguments.with_values(replace(node, inputs=inputs), hoisted, graph_ref)
    reads_before = _writes_after_reads(graph, before_loops, loads)
    ordered = (
        node.waiting_for(*reads_before[node.name]) if node.name in reads_before else node for node in nodes
    )
    return drop_unreachable_functions(replace(graph, nodes=tuple(ordered), functions=arguments.functions))


def _writes_after_reads(
    graph: Graph, reads: Mapping[str, Sequence[str]], loads: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """Assignment → reads that it must wait for; it already waits for calls that read.

    Args:
        reads: handle → reads that were moved in front of loops and branches.
        loads: assignments that are not part of the step.
    """
    if not reads:
        return {}
    uses = resource_uses(graph)
    return {
        write: tuple(names)
        for handle, names in reads.items()
        for write in uses[handle].writes
        if write not in loads
    }


def _carried(
    graph: Graph,
    arguments: ValueArguments,
    values: Mapping[str, Value],
    left_alone: AbstractSet[str],
    calls: Collection[str] | None,
) -> dict[str | tuple[str, int], str]:
    """Reference that is now a value → handle of the variable: inputs and outputs of calls.

    A call that returns a variable's handle takes the value only if all further users can.
    """
    carried: dict[str | tuple[str, int], str] = {}
    uses = tensor_uses(graph.nodes)

    def uses_of(ref: str) -> Sequence[Use]:
        return uses.get(ref, ())

    for node in graph.nodes:
        if node.op not in TAKERS or node.name in left_alone or (calls is not None and node.name not in calls):
            continue
        for k, handle in enumerate(node.data_inputs):
            outputs = arguments.passed_on(node, k) if handle in values else None
            if outputs is None:
                continue
            refs = arguments.follow([graph_ref(node, i) for i in outputs], uses_of, graph_ref, by=node.op)
            if refs is not None and left_alone.isdisjoint(u.name for ref in refs for u, _ in uses_of(ref)):
                carried |= dict.fromkeys(refs, handle)
                carried[node.name, k] = handle
    return carried
