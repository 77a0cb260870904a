"""Changes of a graph and of its functions, with gates between While nodes and what takes their results."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from strategies.ir.graph import Function, Graph, Node, producer
from strategies.passes.tpu.compiled.scopes import Scope, Scopes
from strategies.passes.tpu.reshard.reshard_nodes import identity, no_op


@dataclass(slots=True)
class ScopeEdits:
    """What changes in one scope.

    Attributes:
        ending: nodes that run when a While node has, before anything else that takes what it gives.
        gated: While node → those of them that all others wait for.
    """

    replaced: dict[str, Node] = field(default_factory=dict)
    added: list[Node] = field(default_factory=list)
    ending: list[Node] = field(default_factory=list)
    gated: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.added or self.ending)

    def nodes(self, scope: Scope) -> tuple[Node, ...]:
        """The nodes of a scope as they are now."""
        nodes = (*(self.replaced.get(node.name, node) for node in scope.graph.nodes), *self.added)
        if not self.gated:
            return nodes
        waiting = (
            node.changed(inputs=tuple(self.after_loops(scope, ref) for ref in node.inputs)) for node in nodes
        )
        return (*waiting, *self.ending, *self._gates(scope))

    def after_loops(self, scope: Scope, ref: str) -> str:
        """What stands for a reference: for what a While node gives, that after resharding."""
        name = producer(ref)
        if name not in self.gated:
            return ref
        gate = _gate(name)
        return f"^{gate}" if ref[0] == "^" else scope.ref(f"{gate}_{scope.number(ref)}")

    def _gates(self, scope: Scope) -> Iterator[Node]:
        for name, waits in self.gated.items():
            loop, gate = scope.graph.by_name[name], _gate(name)
            dtypes = loop.attrs["T"]
            assert isinstance(dtypes, tuple)
            yield no_op(gate, waits, loop.device)
            for number, dtype in enumerate(dtypes):
                ref = scope.ref(name, "output", number, number)
                yield identity(f"{gate}_{number}", ref, dtype, loop.device, [gate])


def _gate(name: str) -> str:
    return f"{name}/reshard/gate"


def edited(graph: Graph, edits: Mapping[str, ScopeEdits], scopes: Scopes) -> Graph:
    """The graph with what changes in each scope; the same object where nothing does."""
    if not any(edits.values()):
        return graph
    functions = {
        **graph.functions,
        **{
            name: _edited_function(scopes.by_name[name], each)
            for name, each in edits.items()
            if name and each
        },
    }
    own = edits[""].nodes(scopes.by_name[""]) if edits[""] else graph.nodes
    return replace(graph, nodes=own, functions=functions)


def _edited_function(scope: Scope, edits: ScopeEdits) -> Function:
    function = scope.function
    assert function is not None
    return replace(
        function,
        nodes=edits.nodes(scope),
        results={name: edits.after_loops(scope, ref) for name, ref in function.results.items()},
        control_results={
            name: edits.after_loops(scope, f"^{node}")[1:] for name, node in function.control_results.items()
        },
    )
