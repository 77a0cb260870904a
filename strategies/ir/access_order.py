"""Order of reads and assignments of variables, into the bodies of calls.

A call is no barrier: TensorFlow lowers branches, loops and functions into nodes that start as soon as their
own inputs and the call's control inputs are ready. An assignment in a branch waits for no other node of the
branch.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import and_, or_
from typing import TypeAlias

from strategies.ir.graph import Function, FunctionRef, Graph, Node, producer
from strategies.ir.ops import (
    BRANCHES,
    CALLS,
    FORWARDING_OPS,
    LOOPS,
    MERGES,
    NEXT_ITERATIONS,
    SWITCHES,
    UNCHANGED,
)
from strategies.ir.resource_uses import written_inputs
from strategies.ir.traversal import topological_order

Events: TypeAlias = int
"""Set of accesses and marks; each one is a bit."""
Path: TypeAlias = tuple[str, ...]
"""Path to a node: a node of the graph, then a function and one of its nodes for each nested body."""
Branches: TypeAlias = Mapping[Path, int]
"""Calls, and predicates of TensorFlow 1 branches (Switch, Merge), each with the number of a branch."""

_LOOP_CONDITIONS = frozenset({"LoopCond"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """A read or an assignment of a variable.

    Attributes:
        handle: node of the graph that names the variable.
        event: bit of the access. before: events that precede it in every run.
        branches: enclosing calls and predicates, each with the number of the branch.
    """

    handle: str
    path: Path
    writes: bool
    event: Events
    before: Events
    branches: Branches


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessOrder:
    """Accesses of a graph, with the events that precede each.

    Attributes:
        marks: requested node → its bit.
        done: node → events before its successors, its own included.
    """

    accesses: tuple[Access, ...]
    marks: Mapping[str, Events]
    done: Mapping[str, Events]

    @classmethod
    def of(cls, graph: Graph, marks: Iterable[str] = ()) -> "AccessOrder":
        walk = _Walk(graph)
        bits = {name: walk.event((name,)) for name in marks}
        while True:
            known = dict(walk.rounds)
            body = walk.through(graph.nodes, _Body(), (), bits)
            # Values carried to the next iteration of a loop are known at its end.
            if walk.rounds == known:
                return cls(accesses=tuple(walk.accesses.values()), marks=bits, done=body.done)


@dataclass(slots=True)
class _Body:
    """State of a walk through a graph or a function's body.

    Attributes:
        tensors: node or argument → events before each output; one entry if all are equal.
        handles: node or argument → variables that each output names; one entry if all are equal.
        start: events before the whole body.
        sides: tensor or node → its branches, if they differ from the body's.
        loops: LoopCond nodes; Switches on them are loops, not branches.
    """

    tensors: dict[str, list[Events]] = field(default_factory=dict)
    handles: dict[str, list[str | None]] = field(default_factory=dict)
    done: dict[str, Events] = field(default_factory=dict)
    start: Events = 0
    branches: Branches = field(default_factory=dict)
    sides: dict[str, Branches] = field(default_factory=dict)
    loops: set[str] = field(default_factory=set)

    @classmethod
    def of(
        cls,
        function: Function,
        events: Sequence[Events],
        handles: Sequence[str | None],
        start: Events,
        branches: Branches,
    ) -> "_Body":
        names = [arg.name for arg in function.inputs]
        return cls(
            tensors={name: [event] for name, event in zip(names, events, strict=True)},
            handles={name: [handle] for name, handle in zip(names, handles, strict=True)},
            done=dict(zip(names, events, strict=True)),
            start=start,
            branches=branches,
        )

    def events(self, ref: str) -> Events:
        if ref[0] == "^":
            return self.done[ref[1:]]
        outputs = self.tensors[producer(ref)]
        return outputs[_index(ref)] if len(outputs) > 1 else outputs[0]

    def handle(self, ref: str) -> str | None:
        outputs = self.handles.get(producer(ref), [None])
        return outputs[_index(ref)] if len(outputs) > 1 else outputs[0]


@dataclass(slots=True)
class _Walk:
    """A walk through a graph and all called bodies; `rounds` has events before NextIterations."""

    graph: Graph
    accesses: dict[Events, Access] = field(default_factory=dict)
    rounds: dict[Path, Events] = field(default_factory=dict)
    _events: dict[Path, Events] = field(default_factory=dict)
    _within: dict[Path, Events] = field(default_factory=dict)
    _open: list[str] = field(default_factory=list)

    def event(self, key: Path) -> Events:
        return self._events.setdefault(key, 1 << len(self._events))

    def through(
        self, nodes: Collection[Node], body: _Body, scope: Path, marks: Mapping[str, Events]
    ) -> _Body:
        for node in topological_order(nodes):
            path = (*scope, node.name)
            waits = (
                body.events(ref)
                if producer(ref) in body.tensors
                else self.rounds.get((*scope, producer(ref)), 0)
                for ref in node.inputs
            )
            before = reduce(or_, waits, body.start)
            functions, branches = self._functions(node), _branches(node, body, scope)
            if functions:
                self._call(node, functions, body, path, branches)
            else:
                accessed = self._accessed(node, body, before, path, branches)
                events = before | accessed | marks.get(node.name, 0)
                body.tensors[node.name], body.done[node.name] = [events], events
            if node.op in NEXT_ITERATIONS:
                self.rounds[path] = before
        return body

    def _functions(self, node: Node) -> list[Function]:
        if node.op not in CALLS:
            return []
        attrs = [node.attrs.get(key) for key in ("cond", "body", "then_branch", "else_branch", "f")]
        branches = node.attrs.get("branches", ())
        refs = [*attrs, *(branches if isinstance(branches, tuple) else ())]
        names = [ref.name for ref in refs if isinstance(ref, FunctionRef)]
        # A recursive function is treated as a single node.
        return [] if set(names) & set(self._open) else [self.graph.functions[name] for name in names]

    def _call(
        self, node: Node, functions: list[Function], body: _Body, path: Path, branches: Branches
    ) -> None:
        inputs = list(node.data_inputs)
        start = reduce(or_, (body.done[name] for name in node.control_inputs), body.start)
        if node.op in BRANCHES:
            start |= body.events(inputs.pop(0))
        events, handles = [body.events(ref) | start for ref in inputs], [body.handle(ref) for ref in inputs]
        n_before = len(self._events)
        outcomes: list[_Outcome] = []
        for k, function in enumerate(functions):
            chosen = {**branches, path: k} if node.op in BRANCHES else branches
            inner = _Body.of(function, events, handles, start, chosen)
            outcomes.append(self._through_function(function, inner, path))
            if node.op in LOOPS:
                # An iteration begins when the condition holds.
                start |= outcomes[0].results[0]
                events = [event | start for event in events]
        within = self._within.setdefault(path, (1 << len(self._events)) - (1 << n_before))
        done = _one_of([outcome.done for outcome in outcomes], within) | start
        if node.op in LOOPS:
            # The loop may have no iterations.
            results = zip(events, outcomes[-1].results, strict=True)
            outputs = [own | (result & within) for own, result in results]
            done = reduce(or_, outputs, done)
        else:
            outputs = [
                _one_of(results, within) for results in zip(*(o.results for o in outcomes), strict=True)
            ]
            handles = outcomes[0].handles
        body.tensors[node.name], body.handles[node.name] = outputs or [done], handles or [None]
        body.done[node.name] = done

    def _through_function(self, function: Function, body: _Body, path: Path) -> "_Outcome":
        self._open.append(function.name)
        self.through(function.nodes, body, (*path, function.name), {})
        self._open.pop()
        refs = [function.results[arg.name] for arg in function.outputs]
        return _Outcome(
            results=[body.events(ref) for ref in refs],
            handles=[body.handle(ref) for ref in refs],
            done=reduce(or_, (body.done[name] for name in function.control_results.values()), body.start),
        )

    def _accessed(self, node: Node, body: _Body, before: Events, path: Path, branches: Branches) -> Events:
        if node.op == "VarHandleOp" and len(path) == 1:
            body.handles[node.name] = [node.name]
        named = {k: name for k, ref in enumerate(node.data_inputs) if (name := body.handle(ref)) is not None}
        if not named or node.op in UNCHANGED:
            return 0
        if node.op in FORWARDING_OPS:
            body.handles[node.name] = [next(iter(named.values()))]
            return 0
        written = {named[k] for k in written_inputs(self.graph, node, frozenset(named), {})}
        noted = 0
        for handle in dict.fromkeys(named.values()):
            event = self.event((*path, handle))
            self.accesses[event] = Access(
                handle=handle,
                path=path,
                writes=handle in written,
                event=event,
                before=before,
                branches=branches,
            )
            noted |= event
        return noted


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """Result of walking through a body: events before its results, and variables that these name."""

    results: list[Events]
    handles: list[str | None]
    done: Events


def _branches(node: Node, body: _Body, scope: Path) -> Branches:
    sides = [body.sides.get(ref, body.sides.get(producer(ref), {})) for ref in node.inputs]
    if node.op in MERGES:
        branches = {call: k for call, k in sides[0].items() if all(side.get(call) == k for side in sides)}
    else:
        branches = {call: k for side in sides for call, k in side.items()}
    if branches:
        branches = {**body.branches, **branches}
        body.sides[node.name] = branches
    if node.op in _LOOP_CONDITIONS:
        body.loops.add(node.name)
    elif node.op in SWITCHES and producer(node.inputs[1]) not in body.loops:
        predicate = (*scope, node.inputs[1])
        outputs = (
            (node.name, f"{node.name}:output_false:0"),
            (f"{node.name}:1", f"{node.name}:output_true:0"),
        )
        for k, refs in enumerate(outputs):
            body.sides.update((ref, {**body.branches, **branches, predicate: k}) for ref in refs)
        body.sides[f"^{node.name}"] = branches
    return branches or body.branches


def _one_of(branches: Collection[Events], within: Events) -> Events:
    return reduce(and_, branches) | (reduce(or_, branches) & within)


def _index(ref: str) -> int:
    return int(ref.rpartition(":")[2]) if ":" in ref else 0
