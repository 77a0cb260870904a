"""Host loops of the second kind: a While node, and a function for its body."""

from dataclasses import dataclass

from strategies.errors import GraphError
from strategies.ir.graph import FunctionRef, Node, producer
from strategies.passes.tpu.computations import COMPILES, EXECUTES
from strategies.passes.tpu.handles import origin
from strategies.passes.tpu.reshardable import LoopHandle, LoopHandles, Use, handles_made
from strategies.passes.tpu.scopes import Scope, Scopes

_WHILES = frozenset({"While", "StatelessWhile"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionLoop:
    """A While node whose body has compile nodes.

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
        position = next((i for i, arg in enumerate(function.inputs) if arg.name == name), None)
        if position is None:
            return None
        handed_on = function.results[function.outputs[position].name]
        return name if self._argument(handed_on) == name else None

    def handle(self, source: str) -> str:
        """What an argument of the body is outside of the loop."""
        function = self.body.function
        assert function is not None
        position = next(i for i, arg in enumerate(function.inputs) if arg.name == source)
        return self.node.data_inputs[position]

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
        if any(True for _ in self.condition.readers(tested.inputs[position].name)):
            return None
        uses: set[Use] = set()
        waiting = [function.inputs[position].name]
        for name in waiting:
            for reader, at in self.body.readers(name):
                if reader.op in EXECUTES:
                    uses.add((reader.name, at))
                elif reader.op == "Identity":
                    waiting.append(reader.name)
                else:
                    return None
        return frozenset(uses)


def function_loop(scopes: Scopes, scope: Scope) -> FunctionLoop:
    """The loop of which a scope is the body.

    Raises:
        GraphError: it is that of none, or of several.
    """
    site = scopes.only_site(scope.name) if scope.function is not None else None
    if site is None or site.node.op not in _WHILES or _called(site.node, "body") != scope.name:
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
