"""Host loops with compile nodes, and the variables that a single computation uses in them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from strategies.errors import GraphError
from strategies.ir.control_flow import Frame
from strategies.ir.graph import Node, producer
from strategies.ir.ops import ENTERS, EXITS, NEXT_ITERATIONS, SWITCHES
from strategies.ir.traversal import ancestors, descendants, reachable_functions
from strategies.passes.tpu.computations import COMPILES, EXECUTES, Computation
from strategies.passes.tpu.scopes import Origin, Scope, Scopes, origin, origin_of_node

Use: TypeAlias = tuple[str, int]
"""Execute node that uses a handle, and position of the input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopHandle:
    """A handle that enters a loop.

    Attributes:
        source: name of its Enter node.
        uses: execute nodes that use it; None if any other node does.
    """

    source: str
    origin: Origin
    uses: frozenset[Use] | None


@dataclass(frozen=True, kw_only=True)
class LoopHandles:
    """All handles of variables in a loop: entering ones, by source, and those created inside."""

    entering: Mapping[str, LoopHandle]
    created: tuple[Origin, ...]

    def reshardable(
        self, computation: Computation, sources: Mapping[int, Sequence[str | None]]
    ) -> tuple[int, ...]:
        """Positions of arguments that can be partitioned during the loop.

        Args:
            sources: position → source of the handle for each execute node.
        """
        return tuple(
            position
            for position in computation.candidates()
            if self._is_reshardable(computation, position, sources[position])
        )

    def _is_reshardable(self, computation: Computation, position: int, sources: Sequence[str | None]) -> bool:
        handles = [self.entering.get(source) for source in sources if source is not None]
        known = [handle for handle in handles if handle is not None]
        uses = frozenset((execute.name, position) for execute in computation.executes)
        return len(known) == len(computation.executes) and _one_or_each(known) and self._only(uses, known)

    def _only(self, uses: frozenset[Use], handles: Sequence[LoopHandle]) -> bool:
        variables = {handle.origin for handle in handles}
        if any(one.names is None or any(one.may_be(other) for other in self.created) for one in variables):
            return False
        return all(
            other.uses is not None and other.uses <= uses
            for one in variables
            for other in (*self._by_names.get(one.names, ()), *self._by_names.get(None, ()))
            if one.may_be(other.origin)
        )

    @cached_property
    def _by_names(self) -> Mapping[tuple[str | bytes, ...] | None, Sequence[LoopHandle]]:
        handles: dict[tuple[str | bytes, ...] | None, list[LoopHandle]] = {}
        for handle in self.entering.values():
            handles.setdefault(handle.origin.names, []).append(handle)
        return handles


def _one_or_each(handles: Sequence[LoopHandle]) -> bool:
    n_replicas = len(handles)
    n_sources = len({handle.source for handle in handles})
    n_variables = len({handle.origin for handle in handles})
    return n_sources in (1, n_replicas) and n_variables in (1, n_replicas)


def handles_made(scopes: Scopes, nodes: Iterable[Node], programs: Iterable[Node]) -> tuple[Origin, ...]:
    """Variables whose handles are created by these nodes or by functions that they call.

    Args:
        programs: compile nodes; their functions run on cores and are not called.
    """
    functions = {name: scope.function for name, scope in scopes.by_name.items() if scope.function is not None}
    compiled = {node.name for node in programs}
    own = tuple(nodes)
    called = reachable_functions((node for node in own if node.name not in compiled), functions)
    inside = (node for name in sorted(called) for node in functions[name].nodes)
    return tuple(origin_of_node(node) for node in (*own, *inside) if node.op == "VarHandleOp")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLoop:
    """A loop of frames with compile nodes.

    Attributes:
        frame: names of the loops around its nodes, its own last.
        switches: Switch nodes of its condition, by name.
        exits, compiles: Exit and compile nodes, without those of inner loops.
        nodes: all nodes, including those of inner loops.
    """

    frame: Frame
    condition: Node
    switches: dict[str, Node]
    exits: tuple[Node, ...]
    compiles: tuple[Node, ...]
    nodes: tuple[Node, ...]

    def handles(self, scopes: Scopes, scope: Scope) -> LoopHandles:
        entering = {
            node.name: LoopHandle(
                source=node.name,
                origin=origin(scopes, scope, node.data_inputs[0]),
                uses=self._uses(scope, node.name),
            )
            for node in self.nodes
            if self._enters(scope, node) and node.attrs.get("T") == "resource"
        }
        return LoopHandles(entering=entering, created=handles_made(scopes, self.nodes, self.compiles))

    def source(self, scope: Scope, ref: str) -> str | None:
        """Enter of a value that is the same in every iteration, else None.

        It is traced back through identities and, for a loop variable, its Switch and Merge.
        """
        is_iterated = False
        while (node := scope.of_data(ref)) is not None:
            if node.op in ENTERS:
                return node.name if self._enters(scope, node) else None
            if node.op == "Merge":
                return self._source_of_merge(scope, node) if is_iterated else None
            if self._is_iterated(scope, ref):
                is_iterated = True
            elif node.op != "Identity":
                return None
            ref = node.data_inputs[0]
        return None

    def switch(self, ref: str, scope: Scope) -> str | None:
        while (node := scope.of_data(ref)) is not None and node.op == "Identity":
            ref = node.data_inputs[0]
        return producer(ref) if producer(ref) in self.switches else None

    def check(self, scope: Scope, computation: Computation) -> None:
        """Check that execute nodes run in every iteration, and that the next iteration waits for them.

        Raises:
            GraphError: those of the last iteration could run after the loop, or start when it ends.
        """
        frames = scope.loops.frames
        backs = {n.name for n in self.nodes if n.op in NEXT_ITERATIONS and frames[n.name] == self.frame}
        enters = {n.name for n in self.nodes if self._enters(scope, n)}
        awaited = ancestors(scope.graph, self.switches, stop=enters)
        begun = [
            reader.name
            for switch in self.switches
            for reader, position in scope.readers(switch)
            if self._is_iterated(scope, reader.data_inputs[position])
        ]
        iterated = descendants(scope.graph, begun, stop=backs)
        for execute in computation.executes:
            if execute.name not in awaited or execute.name not in iterated:
                raise GraphError(
                    f"every iteration must make its executes and wait for them, got {execute.name!r}, which "
                    "is not between the loop's Switches and its NextIterations"
                )

    def _enters(self, scope: Scope, node: Node) -> bool:
        return node.op in ENTERS and scope.loops.frames.get(node.name) == self.frame

    def _is_iterated(self, scope: Scope, ref: str) -> bool:
        return producer(ref) in self.switches and ref == scope.ref(producer(ref), "output_true", 1)

    def _source_of_merge(self, scope: Scope, merge: Node) -> str | None:
        sources = [node for ref in merge.data_inputs if (node := scope.of_data(ref)) is not None]
        enters = [node for node in sources if self._enters(scope, node)]
        backs = [node for node in sources if node.op in NEXT_ITERATIONS]
        if len(merge.data_inputs) != 2 or len(enters) != 1 or len(backs) != 1:
            return None
        ref = backs[0].data_inputs[0]
        while (node := scope.of_data(ref)) is not None:
            if node.op != "Identity" and not self._is_iterated(scope, ref):
                break
            ref = node.data_inputs[0]
        return enters[0].name if node is merge else None

    def _uses(self, scope: Scope, entry: str) -> frozenset[Use] | None:
        uses: set[Use] = set()
        waiting = [entry]
        seen = {entry}
        for name in waiting:
            for reader, position in scope.readers(name):
                if reader.op in EXECUTES:
                    uses.add((reader.name, position))
                elif self._passes_on(reader, position):
                    if reader.name not in seen:
                        seen.add(reader.name)
                        waiting.append(reader.name)
                elif reader.op not in EXITS:
                    return None
        return frozenset(uses)

    def _passes_on(self, node: Node, position: int) -> bool:
        is_switched = node.name in self.switches and position == 0
        return is_switched or node.op in NEXT_ITERATIONS or node.op in ("Identity", "Merge")


def host_loops(scope: Scope, left: dict[str, str]) -> Iterator[HostLoop]:
    """Loops with compile nodes, innermost first.

    Args:
        left: mapping that receives a reason for each compile node outside such loops.
    """
    in_no_frame = (n for n in scope.graph.nodes if n.op in COMPILES and n.name not in scope.loops.frames)
    left |= {node.name: "must be in a loop of the host, got it in none" for node in in_no_frame}
    by_frame = {
        frame: compiles
        for frame, own in scope.by_frame.items()
        if (compiles := tuple(node for node in own if node.op in COMPILES))
    }
    for frame in sorted(by_frame, key=len, reverse=True):
        try:
            yield _loop(scope, frame, by_frame[frame])
        except GraphError as error:
            left |= {node.name: str(error) for node in by_frame[frame]}


def _loop(scope: Scope, frame: Frame, compiles: tuple[Node, ...]) -> HostLoop:
    own = scope.by_frame[frame]
    conditions = [node for node in own if node.op == "LoopCond"]
    if len(conditions) != 1:
        raise GraphError(f"its loop must have one condition, got {len(conditions)}")
    condition = conditions[0]
    switches = {
        node.name: node
        for node in own
        if node.op in SWITCHES and producer(node.data_inputs[1]) == condition.name
    }
    exits = tuple(node for node in own if node.op in EXITS)
    if not exits or not all(_is_after_last(scope, switches, node.data_inputs[0]) for node in exits):
        raise GraphError(
            "what leaves its loop must come from Switches of its condition, got other Exits, or none"
        )
    inside = tuple(
        node for other, nodes in scope.by_frame.items() if other[: len(frame)] == frame for node in nodes
    )
    return HostLoop(
        frame=frame, condition=condition, switches=switches, exits=exits, compiles=compiles, nodes=inside
    )


def _is_after_last(scope: Scope, switches: dict[str, Node], ref: str) -> bool:
    while (node := scope.of_data(ref)) is not None and node.op == "Identity":
        ref = node.data_inputs[0]
    return producer(ref) in switches and ref == scope.ref(producer(ref), "output_false", 0)
