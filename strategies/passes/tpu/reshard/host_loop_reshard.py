"""Resharding around host loops: variables lie in parts while a loop runs, and whole before and after it.

In a host loop every iteration executes one program on all cores. A variable that in the loop these executes
alone see need not be whole on every core between iterations: each core keeps a part of it, and its update is
made once in place of once on each. Before each iteration a node brings variables into the program's format,
which is nothing to do after the first; after the last iteration one brings them back, and whatever leaves the
loop waits for that.

Source:
    Xu et al. 2020, "Automatic cross-replica sharding of weight update in data-parallel training",
    arXiv:2004.13336.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from strategies.errors import GraphError
from strategies.ir.graph import Graph, Node
from strategies.ir.train_graph import TrainGraph
from strategies.passes.task_plan import TaskPlan
from strategies.passes.tpu.compiled.computations import COMPILES
from strategies.passes.tpu.compiled.scopes import Scope, Scopes
from strategies.passes.tpu.reshard.chosen_computations import Chosen, all_chosen
from strategies.passes.tpu.reshard.function_loops import FunctionLoop, function_loop
from strategies.passes.tpu.reshard.host_loops import HostLoop, host_loops
from strategies.passes.tpu.reshard.reshard_nodes import ReplicaFormat, identity, no_op
from strategies.passes.tpu.reshard.scope_edits import ScopeEdits, edited
from strategies.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Resharded:
    """A graph after the pass.

    Attributes:
        graph: the object that came in where nothing could be resharded.
        left: compile node → why it was left as it is.
    """

    graph: Graph
    left: Mapping[str, str]


def reshard_host_loops(graph: Graph) -> Resharded:
    """Insert resharding around every host loop whose computations allow it.

    A computation that breaks a rule is left untouched, and others are looked at all the same.
    """
    if not any(node.op in COMPILES for nodes in _all_nodes(graph) for node in nodes):
        return Resharded(graph=graph, left={})
    scopes = Scopes.of(graph)
    edits = {name: ScopeEdits() for name in scopes.by_name}
    left: dict[str, str] = {}
    for name, scope in scopes.by_name.items():
        if name and scopes.only_site(name) is None:
            reason = "must be reached from one place, so that its format is known there, got several"
            left |= {node.name: reason for node in scope.graph.nodes if node.op in COMPILES}
            continue
        for loop in host_loops(scope, left):
            _reshard_in_frame(scopes, scope, loop, edits[name], left)
        in_no_frame = [n for n in scope.graph.nodes if n.op in COMPILES and n.name not in scope.loops.frames]
        if in_no_frame:
            _reshard_in_function(scopes, scope, in_no_frame, edits, left)
    return Resharded(graph=edited(graph, edits, scopes), left=left)


def _all_nodes(graph: Graph) -> Iterator[tuple[Node, ...]]:
    yield graph.nodes
    yield from (function.nodes for function in graph.functions.values())


def _reshard_in_frame(
    scopes: Scopes, scope: Scope, loop: HostLoop, edits: ScopeEdits, left: dict[str, str]
) -> None:
    handles = loop.handles(scopes, scope)
    check, source = partial(loop.check, scope), partial(loop.source, scope)
    chosen = all_chosen(scope, loop.compiles, handles, check, source, left)
    if chosen:
        _insert_in_frame(scope, loop, chosen, edits)


def _insert_in_frame(scope: Scope, loop: HostLoop, chosen: Iterable[Chosen], edits: ScopeEdits) -> None:
    prefix, device = f"{loop.condition.name}/reshard/", loop.condition.device
    goes_on = next(iter(loop.switches.values()))
    goes_on_ref = scope.ref(goes_on.name, "output_true", 1)
    iteration = identity(f"{prefix}iteration", goes_on_ref, goes_on.attrs["T"], goes_on.device)
    before = no_op(f"{prefix}before", [iteration.name], device)
    last = {
        name: identity(f"{prefix}last/{name}", scope.ref(name, "output_false"), node.attrs["T"], node.device)
        for name, node in loop.switches.items()
    }
    after = no_op(f"{prefix}after", [node.name for node in last.values()], device)
    edits.added += [iteration, before, *last.values(), after]
    back: list[str] = []
    for each in chosen:
        edits.replaced[each.found.compile.name] = each.compile_node()
        for place, execute in enumerate(each.found.executes):
            own = ReplicaFormat.of(scope, each.found.compile.name, execute, place)
            state = own.state([loop.condition.name])
            state_ref = scope.ref(state.name, "resource")
            default_key = own.default_key([after.name])
            key = execute.data_inputs[-1]
            waits = each.waits(scope, execute, before)
            shard = own.reshard("shard", each.handles(execute), key, state_ref, waits)
            at_end = [_at_end(scope, loop, ref, last) for ref in each.handles(execute)]
            unshard = own.reshard("unshard", at_end, scope.ref(default_key.name), state_ref, [after.name])
            edits.added += [state, shard, default_key, unshard]
            edits.replaced[execute.name] = execute.changed(inputs=(*execute.inputs, f"^{shard.name}"))
            back.append(unshard.name)
    for node in loop.exits:
        gate = identity(f"{prefix}exit/{node.name}", node.inputs[0], node.attrs["T"], node.device, back)
        edits.added.append(gate)
        edits.replaced[node.name] = node.changed(inputs=(scope.ref(gate.name), *node.inputs[1:]))


def _at_end(scope: Scope, loop: HostLoop, ref: str, last: Mapping[str, Node]) -> str:
    """What a handle of an iteration is after the last one."""
    switch = loop.switch(ref, scope)
    if switch is not None:
        return scope.ref(last[switch].name)
    source = loop.source(scope, ref)
    assert source is not None
    return scope.ref(source)


def _reshard_in_function(
    scopes: Scopes, scope: Scope, nodes: Iterable[Node], edits: Mapping[str, ScopeEdits], left: dict[str, str]
) -> None:
    try:
        loop = function_loop(scopes, scope)
    except GraphError as error:
        left |= {node.name: str(error) for node in nodes}
        return
    chosen = all_chosen(scope, nodes, loop.handles(scopes), loop.check, loop.source, left)
    if chosen:
        _insert_in_function(loop, chosen, edits[scope.name], edits[loop.caller.name])


def _insert_in_function(
    loop: FunctionLoop, chosen: Iterable[Chosen], inside: ScopeEdits, outside: ScopeEdits
) -> None:
    body, caller, name = loop.body, loop.caller, loop.node.name
    before = no_op("reshard/before", [], "")
    after = no_op(f"{name}/reshard/after", [name], loop.node.device)
    inside.added.append(before)
    outside.ending.append(after)
    back: list[str] = []
    for each in chosen:
        inside.replaced[each.found.compile.name] = each.compile_node()
        for place, execute in enumerate(each.found.executes):
            own = ReplicaFormat.of(body, each.found.compile.name, execute, place)
            state = own.state()
            key = execute.data_inputs[-1]
            handles = each.handles(execute)
            waits = each.waits(body, execute, before)
            shard = own.reshard("shard", handles, key, body.ref(state.name, "resource"), waits)
            inside.added += [state, shard]
            inside.replaced[execute.name] = execute.changed(inputs=(*execute.inputs, f"^{shard.name}"))
            own = replace(own, prefix=f"{name}/{own.prefix}")
            # Where the While node is in a loop itself, so must they be.
            state, default_key = own.state([after.name]), own.default_key([after.name])
            sources = [loop.source(ref) for ref in handles]
            at_end = [loop.handle(source) for source in sources if source is not None]
            default_ref, state_ref = caller.ref(default_key.name), caller.ref(state.name, "resource")
            unshard = own.reshard("unshard", at_end, default_ref, state_ref, [after.name])
            outside.ending += [state, default_key, unshard]
            back.append(unshard.name)
    outside.gated[name] = tuple(back)


@dataclass(frozen=True, kw_only=True, slots=True)
class HostLoopReshard:
    """Keep variables in parts while the step's host loop runs."""

    name: ClassVar[str] = "host-loop-reshard"

    @classmethod
    def of(cls, plan: TaskPlan) -> "HostLoopReshard | None":
        """Where the plan has variables that may lie in parts."""
        return cls() if plan.on_cores and plan.in_parts else None

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:  # noqa: ARG002 - the form of every pass
        """The step with resharding around its loop, and a note on each computation that is left as it was."""
        resharded = reshard_host_loops(graph.graph)
        notes = tuple(f"resharding: computation {name!r}: {why}" for name, why in resharded.left.items())
        if resharded.graph is graph.graph and not notes:
            return graph
        return replace(graph, graph=resharded.graph, notes=(*graph.notes, *notes))
