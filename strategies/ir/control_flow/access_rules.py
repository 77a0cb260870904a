"""The rule that all graphs of a step keep together: whoever accesses a variable does so in a fixed order."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import TypeAlias

from strategies.errors import GraphError
from strategies.ir.control_flow.access_order import Access, AccessOrder
from strategies.ir.functions import renamed_functions
from strategies.ir.graph import Function, Graph, Node, TensorValue, producer
from strategies.ir.text.tensors import tensor_integers
from strategies.ir.traversal import ancestors, copy_nodes, prune

_PUSHES = frozenset({"AccumulatorApplyGradient", "SparseAccumulatorApplyGradient", "QueueEnqueueV2"})
_TAKES = frozenset({"AccumulatorTakeGradient", "SparseAccumulatorTakeGradient", "QueueDequeueV2"})
_Resource: TypeAlias = tuple[str, str]
"""Shared name and device, by which runs find a variable, an accumulator or a queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A session's run of a graph.

    Attributes:
        name: as messages have it. roots: nodes that it runs; it ends when they have.
    """

    name: str
    graph: Graph
    roots: Sequence[str]


def verify_accesses(runs: Sequence[Run]) -> None:
    """Check the order in which runs of one step access variables.

    An assignment of a variable that several runs access and any other access to it come one after the other,
    wherever they are: in one run or in two, in branches, loops or functions. A run that accesses a variable
    ends after all assignments of it, because the next step reads it.

    Args:
        runs: all that begin when others end, so that each takes part once in a step.
    Raises:
        GraphError: for the first variable whose accesses may come in either order.
    """
    graph = _together(runs)
    order = AccessOrder.of(graph)
    accesses: defaultdict[_Resource, list[Access]] = defaultdict(list)
    for access in order.accesses:
        accesses[_resource(graph.by_name[access.handle])].append(access)
    ends = [reduce(or_, (order.done[_name(k, root)] for root in run.roots), 0) for k, run in enumerate(runs)]
    for (name, _), of_one in accesses.items():
        # Within one run capture has ordered them, but for reads that the branch taken does not use.
        if len({_run(access) for access in of_one}) == 1:
            continue
        for write in (access for access in of_one if access.writes):
            conflict = f"variable {name!r}: {_described(write, runs)} assigns it"
            for other in of_one:
                if other is not write and not other.is_ordered_with(write):
                    raise GraphError(
                        f"{conflict} before or after {_described(other, runs)} accesses it; order them"
                    )
            for k in sorted({_run(access) for access in of_one}):
                if not write.event & ends[k]:
                    raise GraphError(f"{conflict} before or after {runs[k].name} ends; let the end wait")


def _together(runs: Sequence[Run]) -> Graph:
    """One graph of all that runs, in which a take waits for what is pushed."""
    nodes: list[Node] = []
    functions: dict[str, Function] = {}
    for k, run in enumerate(runs):
        graph = prune(run.graph, run.roots)
        renamed = {name: _name(k, name) for name in graph.functions}
        nodes += (renamed_functions(node, renamed) for node in copy_nodes(graph.nodes, _name(k, "")))
        for name, function in graph.functions.items():
            body = tuple(renamed_functions(node, renamed) for node in function.nodes)
            functions[renamed[name]] = replace(function, name=renamed[name], nodes=body)
    graph = Graph(nodes=tuple(nodes), functions=functions)
    waits = dict(_waits(graph))
    return graph.with_nodes(
        node.changed(inputs=(*node.inputs, *(f"^{name}" for name in waits[node.name])))
        if node.name in waits
        else node
        for node in nodes
    )


def _waits(graph: Graph) -> Iterator[tuple[str, Sequence[str]]]:
    """Takes, each with the pushes that it waits for."""
    pushes: defaultdict[_Resource, list[str]] = defaultdict(list)
    takes: defaultdict[_Resource, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if node.op in _PUSHES:
            pushes[_resource_of(node, graph)].append(node.name)
        elif node.op in _TAKES:
            takes[_resource_of(node, graph)].append(node)
    for resource, (take, *others) in takes.items():
        pushed = pushes[resource]
        # What a step gives back after it has taken it was there before.
        if not others and _needed(take, graph) == len(pushed) and take.name not in ancestors(graph, pushed):
            yield take.name, pushed


def _needed(take: Node, graph: Graph) -> int:
    """Number of pushes that a take waits for."""
    if take.op == "QueueDequeueV2":
        return 1
    value = graph.by_name[producer(take.inputs[1])].attrs["value"]
    assert isinstance(value, TensorValue)
    _, numbers = tensor_integers(value.proto)
    return numbers[0] if numbers else 0


def _resource_of(node: Node, graph: Graph) -> _Resource:
    return _resource(graph.by_name[producer(node.inputs[0])])


def _resource(handle: Node) -> _Resource:
    shared_name = handle.attrs.get("shared_name")
    named = isinstance(shared_name, bytes) and shared_name.decode()
    return named or handle.name, handle.device


def _name(run: int, name: str) -> str:
    return f"{run}/{name}"


def _run(access: Access) -> int:
    return int(access.path[0].partition("/")[0])


def _described(access: Access, runs: Sequence[Run]) -> str:
    """An access as a person finds it, innermost first."""
    _, _, node = access.path[0].partition("/")
    inner = (name.partition("/")[2] if k % 2 else name for k, name in enumerate(access.path[1:], 1))
    return f"{' in '.join(repr(name) for name in reversed((node, *inner)))} of {runs[_run(access)].name}"
