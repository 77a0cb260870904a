"""Host loops of the first kind, in frames: their nodes, and how handles come into them."""

from collections.abc import Iterator
from dataclasses import dataclass

from strategies.errors import GraphError
from strategies.ir.control_flow.loop_frames import Frame
from strategies.ir.graph import Node, producer
from strategies.ir.traversal import ENTERS, ancestors, descendants
from strategies.passes.tpu.compiled.computations import COMPILES, EXECUTES, Computation
from strategies.passes.tpu.compiled.handles import NEXT_ITERATIONS, origin
from strategies.passes.tpu.compiled.scopes import EXITS, Scope, Scopes
from strategies.passes.tpu.reshard.reshardable import LoopHandle, LoopHandles, Use, handles_made

_SWITCHES = frozenset({"Switch", "RefSwitch"})


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLoop:
    """A loop with compile nodes.

    Attributes:
        frame: names of the loops around its nodes, its own last.
        condition: its LoopCond.
        switches: of its condition, by name.
        exits: its Exits, in graph order.
        compiles: compile nodes in it and in no loop inside of it.
        nodes: everything in it, inner loops included.
    """

    frame: Frame
    condition: Node
    switches: dict[str, Node]
    exits: tuple[Node, ...]
    compiles: tuple[Node, ...]
    nodes: tuple[Node, ...]

    def handles(self, scopes: Scopes, scope: Scope) -> LoopHandles:
        """All by which variables can be reached in it."""
        entering = {
            node.name: LoopHandle(
                source=node.name,
                origin=origin(scopes, scope, node.data_inputs[0]),
                uses=self._uses(scope, node.name),
            )
            for node in self.nodes
            if self._enters(scope, node) and node.attrs.get("T") == "resource"
        }
        return LoopHandles(entering=entering, made=handles_made(scopes, self.nodes, self.compiles))

    def source(self, scope: Scope, ref: str) -> str | None:
        """The Enter of a value that is the same in every iteration; None of what is not, or is made inside.

        It is traced back through identities and, if it is a variable of the loop, its Switch and Merge.
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
        """The Switch through which a value comes; None of one that every iteration takes directly."""
        while (node := scope.of_data(ref)) is not None and node.op == "Identity":
            ref = node.data_inputs[0]
        return producer(ref) if producer(ref) in self.switches else None

    def check(self, scope: Scope, found: Computation) -> None:
        """Check that executes run in every iteration, and that each next one waits for them.

        Raises:
            GraphError: the last iteration's could go on after the loop has ended, or begin where it ends.
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
        for execute in found.executes:
            if execute.name not in awaited or execute.name not in iterated:
                raise GraphError(
                    f"every iteration must make its executes and wait for them, got {execute.name!r}, which "
                    "is not between the loop's Switches and its NextIterations"
                )

    def _enters(self, scope: Scope, node: Node) -> bool:
        return node.op in ENTERS and scope.loops.frames.get(node.name) == self.frame

    def _is_iterated(self, scope: Scope, ref: str) -> bool:
        """Whether a reference is what a Switch of the loop gives while it goes on."""
        return producer(ref) in self.switches and ref == scope.ref(producer(ref), "output_true", 1)

    def _source_of_merge(self, scope: Scope, merge: Node) -> str | None:
        """The Enter of a variable of the loop that every iteration hands on as it is."""
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
        left: gets the reason for compile nodes whose loop is none.
    """
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
        if node.op in _SWITCHES and producer(node.data_inputs[1]) == condition.name
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
