"""Scopes of nodes: a graph, or the body of one of its functions, and how each writes references."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from strategies.ir.control_flow.loop_frames import Frame, LoopFrames
from strategies.ir.functions import called_functions, reachable_functions
from strategies.ir.graph import Function, FunctionRef, Graph, Node, output_index, producer, tensor

EXITS = frozenset({"Exit", "RefExit"})
_CALLS: Mapping[str, tuple[tuple[str, ...], int]] = {
    "PartitionedCall": (("f",), 0),
    "StatefulPartitionedCall": (("f",), 0),
    "TPUPartitionedCall": (("f",), 0),
    "While": (("cond", "body"), 0),
    "StatelessWhile": (("cond", "body"), 0),
    "If": (("then_branch", "else_branch"), 1),
    "StatelessIf": (("then_branch", "else_branch"), 1),
}
"""Op → attributes that name functions which it calls, and how many inputs come before their arguments."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Nodes that name each other; without slots, for what is derived is kept.

    Attributes:
        graph: of these nodes; of a function's body without the arguments, which are no nodes.
        function: whose body it is, None for a graph itself.
    """

    graph: Graph
    function: Function | None = None

    @cached_property
    def loops(self) -> LoopFrames:
        """The frames of its loops."""
        return LoopFrames.of(self.graph)

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Argument of the function → its place among them."""
        return {} if self.function is None else {arg.name: i for i, arg in enumerate(self.function.inputs)}

    @cached_property
    def order(self) -> Mapping[str, int]:
        """Node → its place in the graph."""
        return {node.name: place for place, node in enumerate(self.graph.nodes)}

    @cached_property
    def by_frame(self) -> Mapping[Frame, tuple[Node, ...]]:
        """Nodes of each loop, without those of loops inside of it; an Exit is where its value comes from."""
        nodes: dict[Frame, list[Node]] = {}
        for node in self.graph.nodes:
            frames = self.loops.frames
            name = producer(node.data_inputs[0]) if node.op in EXITS else node.name
            if name in frames:
                nodes.setdefault(frames[name], []).append(node)
        return {frame: tuple(own) for frame, own in nodes.items()}

    @property
    def name(self) -> str:
        """Of the function, empty for a graph."""
        return "" if self.function is None else self.function.name

    def ref(self, node: str, output: str = "output", place: int = 0, number: int = 0) -> str:
        """The reference to an output of a node.

        Args:
            output: name of the op's output. place: among all tensors that the op gives.
            number: among those of this output.
        """
        return tensor(node, place) if self.function is None else f"{node}:{output}:{number}"

    def number(self, ref: str) -> int:
        """Which of the tensors of one output a reference names, for an op with one output."""
        return output_index(ref) if self.function is None else int(ref.rpartition(":")[2])

    def of_data(self, ref: str) -> Node | None:
        """The node that a reference comes from; None for an argument of the function."""
        return self.graph.by_name.get(producer(ref))

    def readers(self, name: str) -> Sequence[tuple[Node, int]]:
        """Nodes that take outputs of a node as data, and the number of the input."""
        return self._readers.get(name, ())

    @cached_property
    def _readers(self) -> Mapping[str, Sequence[tuple[Node, int]]]:
        # By input, not by consumer: an execute takes so many that they must not be looked through for each.
        readers: dict[str, list[tuple[Node, int]]] = {}
        for node in self.graph.nodes:
            for position, ref in enumerate(node.data_inputs):
                readers.setdefault(producer(ref), []).append((node, position))
        return readers


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSite:
    """Where a function is called: the scope, the node, and how many of its inputs come before arguments."""

    scope: Scope
    node: Node
    n_before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scopes:
    """A graph's own scope and those of the functions that it reaches.

    Attributes:
        by_name: function → scope of its body; the graph's own has no name.
        sites: function → where it is called, None for a call of another form than those known here.
    """

    by_name: Mapping[str, Scope]
    sites: Mapping[str, tuple[CallSite | None, ...]]

    @classmethod
    def of(cls, graph: Graph) -> "Scopes":
        """All scopes of a graph, and who calls whom."""
        by_name = {"": Scope(graph=graph)}
        for name in sorted(reachable_functions(graph.nodes, graph.functions)):
            function = graph.functions[name]
            by_name[name] = Scope(graph=Graph(nodes=function.nodes), function=function)
        sites: dict[str, list[CallSite | None]] = {}
        for scope in by_name.values():
            for node in scope.graph.nodes:
                for name in called_functions(node.attrs) | ({node.op} & by_name.keys()):
                    sites.setdefault(name, []).append(_site(scope, node, name))
        return cls(by_name=by_name, sites={name: tuple(found) for name, found in sites.items()})

    def only_site(self, function: str) -> CallSite | None:
        """Where a function is called, if that is one place in a program that passes there once."""
        found = self.sites.get(function, ())
        if len(found) != 1 or found[0] is None:
            return None
        caller = found[0].scope.name
        return found[0] if not caller or self.only_site(caller) is not None else None


def _site(scope: Scope, node: Node, function: str) -> CallSite | None:
    if node.op == function:
        return CallSite(scope=scope, node=node, n_before=0)
    attributes, n_before = _CALLS.get(node.op, ((), 0))
    called = [node.attrs.get(attribute) for attribute in attributes]
    is_known = any(isinstance(each, FunctionRef) and each.name == function for each in called)
    return CallSite(scope=scope, node=node, n_before=n_before) if is_known else None
