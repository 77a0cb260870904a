"""The rule for variables that workers share: in every run, their accesses come in one order.

Random delays (`races.py`) find a missing wait sometimes; this finds it in the graph.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TypeAlias

from strategies.compile import Compiled
from strategies.errors import GraphError
from strategies.ir.access_order import Access, AccessOrder
from strategies.ir.graph import Function, Graph, Node, producer
from strategies.ir.tensor_proto import constant_array
from strategies.ir.traversal import ancestors, copy_nodes, prune, with_function_prefix
from strategies.passes.task_plan import TaskPlan
from strategies.plan.schema import Plan


def verify_shared_variables(compiled: Sequence[Compiled], plan: Plan) -> None:
    """Check the order of accesses among workers that share variables and wait for each other.

    Raises:
        GraphError: for the first variable with unordered accesses.
    """
    task_plan = TaskPlan(plan=plan, task=0)
    shares = task_plan.is_served or "robust-servers" in task_plan.synchronizers
    if not shares or not plan.execution.waits_for_all or len(compiled) < len(plan.replicas_per_task):
        return
    runs = []
    for rewritten in compiled:
        name, step = f"worker {rewritten.program.task}", rewritten.step
        runs.append(Run(name=name, graph=step.graph, roots=(*step.targets(), *step.returned())))
        runs.append(Run(name=f"{name}, beside its steps,", graph=step.graph, roots=step.background))
    verify_accesses(runs)


_PUSHES = frozenset({"AccumulatorApplyGradient", "SparseAccumulatorApplyGradient", "QueueEnqueueV2"})
_TAKES = frozenset({"AccumulatorTakeGradient", "SparseAccumulatorTakeGradient", "QueueDequeueV2"})
_Resource: TypeAlias = tuple[str, str]
"""Shared name and device, by which runs find a variable, an accumulator or a queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One session run of a graph; it ends when its roots have run."""

    name: str
    graph: Graph
    roots: Sequence[str]


def verify_accesses(runs: Sequence[Run]) -> None:
    """Check the order in which runs of one step access variables.

    An assignment of a variable that several runs access must be ordered with any other access to it, in every
    run, branch, loop or function. A run ends after all assignments of the variables that it accesses, because
    the next step reads them.

    Args:
        runs: runs that start when others end, so that each takes part once in a step.
    Raises:
        GraphError: for the first variable with unordered accesses.
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
                if other is not write and not are_ordered(other, write):
                    raise GraphError(
                        f"{conflict} before or after {_described(other, runs)} accesses it; order them"
                    )
            for k in sorted({_run(access) for access in of_one}):
                if not write.event & ends[k]:
                    raise GraphError(f"{conflict} before or after {runs[k].name} ends; let the end wait")


def are_ordered(first: Access, second: Access) -> bool:
    """True if one comes before the other in every run, or a run takes the branch of one of them at most."""
    if first.event & second.before or second.event & first.before:
        return True
    common = first.branches.keys() & second.branches.keys()
    return any(first.branches[call] != second.branches[call] for call in common)


def _together(runs: Sequence[Run]) -> Graph:
    nodes: list[Node] = []
    functions: dict[str, Function] = {}
    for k, run in enumerate(runs):
        graph = with_function_prefix(prune(run.graph, run.roots), _name(k, ""))
        nodes += copy_nodes(graph.nodes, _name(k, ""))
        functions |= graph.functions
    graph = Graph(nodes=tuple(nodes), functions=functions)
    waits = dict(_waits(graph))
    return graph.with_nodes(
        node.waiting_for(*waits[node.name]) if node.name in waits else node for node in nodes
    )


def _waits(graph: Graph) -> Iterator[tuple[str, Sequence[str]]]:
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
    if take.op == "QueueDequeueV2":
        return 1
    required = constant_array(graph.by_name[producer(take.inputs[1])])
    assert required is not None
    return int(required)


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
    _, _, node = access.path[0].partition("/")
    inner = (name.partition("/")[2] if k % 2 else name for k, name in enumerate(access.path[1:], 1))
    return f"{' in '.join(repr(name) for name in reversed((node, *inner)))} of {runs[_run(access)].name}"
