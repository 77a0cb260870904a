"""Resharding around host loops: variables are partitioned during a loop, and whole before and after it.

In a host loop every iteration executes one program on all cores. A variable that only these execute nodes use
in the loop need not be whole on every core between iterations: each core keeps a part of it, and its update
is made once instead of once per core. Before each iteration a node converts variables to the program's
format, a no-op after the first iteration; after the last iteration another node converts them back, and every
output of the loop waits for it.

Source:
    Xu et al. 2020, "Automatic cross-replica sharding of weight update in data-parallel training",
    arXiv:2004.13336.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import ClassVar

from strategies.errors import GraphError
from strategies.ir.graph import DType, Graph, Node, Shape, after, identity, no_op
from strategies.ir.tensor_proto import const
from strategies.ir.train_graph import TrainGraph
from strategies.passes.task_plan import TaskPlan
from strategies.passes.tpu.computations import COMPILES, Computation, Sharding, read_computation
from strategies.passes.tpu.reshard_loops import HostLoop, LoopHandles, host_loops
from strategies.passes.tpu.scopes import Scope, Scopes, handle_node
from strategies.topology import Topology

FORMAT_KEY = Shape((3,))
"""Shape of a program's key, which is also a format: three strings, empty for the default format."""
_STRING = DType("string")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFormat:
    """Format of one replica's variables.

    Attributes:
        device: device of the replica's execute node.
        shared_name: shared name of the variable that holds the current format.
    """

    prefix: str
    device: str
    shared_name: str

    @classmethod
    def of(cls, scope: Scope, compile_name: str, execute: Node, place: int) -> "ReplicaFormat":
        prefix = f"{compile_name}/reshard_{place}/"
        place_in_library = "/".join(filter(None, (scope.name, compile_name, str(place))))
        return cls(prefix=prefix, device=execute.device, shared_name=f"stratbench/format/{place_in_library}")

    def state(self, waits: Sequence[str]) -> Node:
        handle = handle_node(
            f"{self.prefix}state",
            shared_name=self.shared_name,
            dtype=_STRING,
            shape=FORMAT_KEY,
            device=self.device,
        )
        return handle.changed(inputs=after(waits))

    def default_key(self, waits: Sequence[str]) -> Node:
        name = f"{self.prefix}default_key"
        return const(name, "string", (b"", b"", b""), waits=waits, device=self.device)

    def reshard(self, name: str, handles: Sequence[str], key: str, state: str, waits: Sequence[str]) -> Node:
        return Node(
            name=self.prefix + name,
            op="TPUReshardVariables",
            inputs=(*handles, key, state, *after(waits)),
            attrs={"N": len(handles)},
            device=self.device,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardedComputation:
    """A computation, and the positions of its partitioned arguments."""

    computation: Computation
    positions: tuple[int, ...]

    def handles(self, execute: Node) -> tuple[str, ...]:
        inputs = execute.data_inputs
        return tuple(inputs[position] for position in self.positions)

    def waits(self, scope: Scope, execute: Node, before: Node) -> tuple[str, ...]:
        """Waits of the resharding: all nodes that the execute node needs, which may write variables."""
        resharded = frozenset(self.positions)
        others = (ref for i, ref in enumerate(execute.data_inputs[:-1]) if i not in resharded)
        needed = [node.name for ref in others if (node := scope.of_data(ref)) is not None]
        return tuple(dict.fromkeys((before.name, *needed, *execute.control_inputs)))

    def compile_node(self) -> Node:
        node = self.computation.compile
        return node.changed(
            attrs={**node.attrs, "metadata": self.computation.metadata.allowing(self.positions)}
        )


def choose_computations(
    scope: Scope, loop: HostLoop, handles: LoopHandles, left: dict[str, str]
) -> list[ReshardedComputation]:
    """Computations of a loop that can be resharded; `left` receives a reason for each of the others."""
    chosen: list[ReshardedComputation] = []
    for node in loop.compiles:
        try:
            computation = read_computation(scope, node)
            loop.check(scope, computation)
            inputs = [execute.data_inputs for execute in computation.executes]
            sources = {
                position: [loop.source(scope, refs[position]) for refs in inputs]
                for position in computation.candidates()
            }
            chosen.append(_chosen(computation, handles.reshardable(computation, sources)))
        except GraphError as error:
            left[node.name] = str(error)
    return chosen


def _chosen(computation: Computation, positions: tuple[int, ...]) -> ReshardedComputation:
    for position in computation.candidates():
        if (
            position not in positions
            and computation.metadata.arguments[position].sharding is Sharding.ALLOWED
        ):
            # The compiler may expect parts, and without resharding the variable would arrive whole.
            raise GraphError(
                "in its loop executes alone must use each variable that may be sharded already, got another "
                f"use of argument {position}"
            )
    if not positions:
        raise GraphError(
            "needs a variable that may be sharded and that in its loop its executes alone use, got none"
        )
    return ReshardedComputation(computation=computation, positions=positions)


@dataclass(slots=True)
class ScopeEdits:
    """Edits of one scope."""

    replaced: dict[str, Node] = field(default_factory=dict)
    added: list[Node] = field(default_factory=list)

    def nodes(self, scope: Scope) -> tuple[Node, ...]:
        return (*(self.replaced.get(node.name, node) for node in scope.graph.nodes), *self.added)


def apply_edits(graph: Graph, edits: Mapping[str, ScopeEdits], scopes: Scopes) -> Graph:
    """Apply edits to a graph; the same object if there are none."""
    edited = {name: own.nodes(scopes.by_name[name]) for name, own in edits.items() if own.added}
    if not edited:
        return graph
    nodes = edited.pop("", graph.nodes)
    functions = {name: replace(graph.functions[name], nodes=own) for name, own in edited.items()}
    return replace(graph, nodes=nodes, functions={**graph.functions, **functions})


@dataclass(frozen=True, slots=True, kw_only=True)
class Resharded:
    """Result of the pass.

    Attributes:
        graph: new graph; the same object if nothing was resharded.
        left: compile node → reason why it was not changed.
    """

    graph: Graph
    left: Mapping[str, str]


def reshard_host_loops(graph: Graph) -> Resharded:
    """Insert resharding around every host loop whose computations allow it; others stay unchanged."""
    bodies = (function.nodes for function in graph.functions.values())
    if not any(node.op in COMPILES for node in chain(graph.nodes, *bodies)):
        return Resharded(graph=graph, left={})
    scopes = Scopes.of(graph)
    edits = {name: ScopeEdits() for name in scopes.by_name}
    left: dict[str, str] = {}
    for name, scope in scopes.by_name.items():
        if name and scopes.only_site(name) is None:
            reason = "must be in a function that is called in one place, so that its format is known there"
            left |= {node.name: reason for node in scope.graph.nodes if node.op in COMPILES}
            continue
        for loop in host_loops(scope, left):
            chosen = choose_computations(scope, loop, loop.handles(scopes, scope), left)
            if chosen:
                _insert(scope, loop, chosen, edits[name])
    return Resharded(graph=apply_edits(graph, edits, scopes), left=left)


def _insert(scope: Scope, loop: HostLoop, chosen: Iterable[ReshardedComputation], edits: ScopeEdits) -> None:
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
    for computation in chosen:
        edits.replaced[computation.computation.compile.name] = computation.compile_node()
        for place, execute in enumerate(computation.computation.executes):
            own = ReplicaFormat.of(scope, computation.computation.compile.name, execute, place)
            state = own.state([loop.condition.name])
            state_ref = scope.ref(state.name, "resource")
            default_key = own.default_key([after.name])
            key = execute.data_inputs[-1]
            waits = computation.waits(scope, execute, before)
            shard = own.reshard("shard", computation.handles(execute), key, state_ref, waits)
            at_end = [_at_end(scope, loop, ref, last) for ref in computation.handles(execute)]
            unshard = own.reshard("unshard", at_end, scope.ref(default_key.name), state_ref, [after.name])
            edits.added += [state, shard, default_key, unshard]
            edits.replaced[execute.name] = execute.waiting_for(shard.name)
            back.append(unshard.name)
    for node in loop.exits:
        gate = identity(f"{prefix}exit/{node.name}", node.inputs[0], node.attrs["T"], node.device, back)
        edits.added.append(gate)
        edits.replaced[node.name] = node.changed(inputs=(scope.ref(gate.name), *node.inputs[1:]))


def _at_end(scope: Scope, loop: HostLoop, ref: str, last: Mapping[str, Node]) -> str:
    switch = loop.switch(ref, scope)
    if switch is not None:
        return scope.ref(last[switch].name)
    source = loop.source(scope, ref)
    assert source is not None
    return scope.ref(source)


@dataclass(frozen=True, kw_only=True, slots=True)
class HostLoopReshard:
    """Keep variables in parts while the step's host loop runs."""

    name: ClassVar[str] = "host-loop-reshard"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:  # noqa: ARG002 - the form of every pass
        resharded = reshard_host_loops(graph.graph)
        notes = tuple(f"resharding: computation {name!r}: {why}" for name, why in resharded.left.items())
        if resharded.graph is graph.graph and not notes:
            return graph
        return replace(graph, graph=resharded.graph, notes=(*graph.notes, *notes))
