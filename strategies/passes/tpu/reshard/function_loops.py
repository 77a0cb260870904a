"""Host loops of the second kind: a While node, and a function for its body."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from strategies.errors import GraphError
from strategies.ir.graph import FunctionRef, Node, producer
from strategies.ir.traversal import ancestors
from strategies.passes.tpu.compiled.computations import COMPILES, EXECUTES, Computation
from strategies.passes.tpu.compiled.handles import WHILES, origin
from strategies.passes.tpu.compiled.scopes import Scope, Scopes
from strategies.passes.tpu.reshard.reshardable import LoopHandle, LoopHandles, Use, handles_made


@dataclass(frozen=True, kw_only=True)
class FunctionLoop:
    """A While node whose body has compile nodes; without slots, for what is derived is kept.

    Attributes:
        caller: the scope of the node. body, condition: those of its functions.
    """

    node: Node
    caller: Scope
    body: Scope
    condition: Scope
    compiles: tuple[Node, ...]

    def handles(self, scopes: Scopes) -> LoopHandles:
        """All by which variables can be reached in it."""
        function = self.body.function
        assert function is not None
        entering = {
            arg.name: LoopHandle(
                source=arg.name,
                origin=origin(scopes, self.caller, self.node.data_inputs[position]),
                uses=self._uses(position),
            )
            for position, arg in enumerate(function.inputs)
            if arg.dtype == "resource"
        }
        nodes = (*self.body.graph.nodes, *self.condition.graph.nodes)
        return LoopHandles(entering=entering, made=handles_made(scopes, nodes, self.compiles))

    def source(self, ref: str) -> str | None:
        """The argument that a reference of the body passes on, if it is one that every iteration hands on."""
        name = self._argument(ref)
        function = self.body.function
        assert function is not None
        position = self.body.places.get(name) if name is not None else None
        if position is None:
            return None
        handed_on = function.results[function.outputs[position].name]
        return name if self._argument(handed_on) == name else None

    def handle(self, source: str) -> str:
        """What an argument of the body is outside of the loop."""
        return self.node.data_inputs[self.body.places[source]]

    def check(self, found: Computation) -> None:
        """Check that each call of the body waits for the executes.

        Raises:
            GraphError: the last iteration's could go on after the loop has ended.
        """
        function = self.body.function
        assert function is not None
        ends = (*map(producer, function.results.values()), *function.control_results.values())
        awaited = ancestors(self.body.graph, ends, stop=self.body.places)
        for execute in found.executes:
            if execute.name not in awaited:
                raise GraphError(
                    f"every iteration must wait for its executes, got {execute.name!r}, which no result of "
                    "the loop's body needs"
                )

    def _argument(self, ref: str) -> str | None:
        while (node := self.body.of_data(ref)) is not None:
            if node.op != "Identity":
                return None
            ref = node.data_inputs[0]
        return producer(ref)

    def _uses(self, position: int) -> frozenset[Use] | None:
        function, tested = self.body.function, self.condition.function
        assert function is not None
        assert tested is not None
        uses: set[Use] = set()
        waiting = [function.inputs[position].name]
        seen = set(waiting)
        for name in waiting:
            place = self.body.places.get(name)
            if place is not None and self.condition.readers(tested.inputs[place].name):
                return None
            handed_on = [function.inputs[each].name for each in self._results_of.get(name, ())]
            for reader, at in self.body.readers(name):
                if reader.op in EXECUTES:
                    uses.add((reader.name, at))
                elif reader.op == "Identity":
                    handed_on.append(reader.name)
                else:
                    return None
            waiting += [each for each in handed_on if each not in seen]
            seen.update(handed_on)
        return frozenset(uses)

    @cached_property
    def _results_of(self) -> Mapping[str, Sequence[int]]:
        """Argument or node of the body → places of results that it gives, by which iterations hand it on."""
        function = self.body.function
        assert function is not None
        places: dict[str, list[int]] = {}
        for place, output in enumerate(function.outputs):
            places.setdefault(producer(function.results[output.name]), []).append(place)
        return places


def function_loop(scopes: Scopes, scope: Scope) -> FunctionLoop:
    """The loop of which a scope is the body.

    Raises:
        GraphError: it is that of none, or of several.
    """
    site = scopes.only_site(scope.name) if scope.function is not None else None
    if site is None or site.node.op not in WHILES or _called(site.node, "body") != scope.name:
        raise GraphError("must be in a loop of the host, got it in none that is entered from one place")
    return FunctionLoop(
        node=site.node,
        caller=site.scope,
        body=scope,
        condition=scopes.by_name[_called(site.node, "cond")],
        compiles=tuple(node for node in scope.graph.nodes if node.op in COMPILES),
    )


def _called(node: Node, attribute: str) -> str:
    called = node.attrs[attribute]
    assert isinstance(called, FunctionRef)
    return called.name
