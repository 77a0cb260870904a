"""Scopes of nodes (a graph or a function's body), and the variables that handles come from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from strategies.ir.control_flow import Frame, LoopFrames
from strategies.ir.graph import (
    Attr,
    DType,
    Function,
    FunctionRef,
    Graph,
    Node,
    Shape,
    output_index,
    producer,
    tensor,
)
from strategies.ir.ops import ENTERS, EXITS, NEXT_ITERATIONS
from strategies.ir.traversal import called_functions, reachable_functions

_CALLS: Mapping[str, tuple[tuple[str, ...], int]] = {
    "PartitionedCall": (("f",), 0),
    "StatefulPartitionedCall": (("f",), 0),
    "TPUPartitionedCall": (("f",), 0),
    "If": (("then_branch", "else_branch"), 1),
    "StatelessIf": (("then_branch", "else_branch"), 1),
}
"""Op → attributes naming functions that it calls at most once, and the inputs before their arguments."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Nodes that name each other: a graph, or a function's body without its arguments."""

    graph: Graph
    function: Function | None = None

    @cached_property
    def loops(self) -> LoopFrames:
        return LoopFrames.of(self.graph)

    @cached_property
    def places(self) -> Mapping[str, int]:
        return {} if self.function is None else {arg.name: i for i, arg in enumerate(self.function.inputs)}

    @cached_property
    def order(self) -> Mapping[str, int]:
        return {node.name: place for place, node in enumerate(self.graph.nodes)}

    @cached_property
    def by_frame(self) -> Mapping[Frame, tuple[Node, ...]]:
        """Nodes of each loop, without inner loops; an Exit is where its value comes from."""
        nodes: dict[Frame, list[Node]] = {}
        for node in self.graph.nodes:
            frames = self.loops.frames
            name = producer(node.data_inputs[0]) if node.op in EXITS else node.name
            if name in frames:
                nodes.setdefault(frames[name], []).append(node)
        return {frame: tuple(own) for frame, own in nodes.items()}

    @property
    def name(self) -> str:
        return "" if self.function is None else self.function.name

    def ref(self, node: str, output: str = "output", place: int = 0, number: int = 0) -> str:
        """Reference to an output of a node.

        Args:
            output: name of the op's output. place: index among all tensors that the op returns.
            number: index among the tensors of this output.
        """
        return tensor(node, place) if self.function is None else f"{node}:{output}:{number}"

    def number(self, ref: str) -> int:
        return output_index(ref) if self.function is None else int(ref.rpartition(":")[2])

    def of_data(self, ref: str) -> Node | None:
        return self.graph.by_name.get(producer(ref))

    def readers(self, name: str) -> Sequence[tuple[Node, int]]:
        return self._readers.get(name, ())

    @cached_property
    def _readers(self) -> Mapping[str, Sequence[tuple[Node, int]]]:
        # By input, not by consumer: an execute node has too many inputs to search them for each one.
        readers: dict[str, list[tuple[Node, int]]] = {}
        for node in self.graph.nodes:
            for position, ref in enumerate(node.data_inputs):
                readers.setdefault(producer(ref), []).append((node, position))
        return readers


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSite:
    """Call site of a function; `n_before` inputs come before its arguments."""

    scope: Scope
    node: Node
    n_before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scopes:
    """Scopes of a graph and of the functions that it reaches.

    Attributes:
        by_name: function → scope of its body; the name of the graph's own scope is empty.
        sites: function → its call sites, None if it is called in an unknown form.
    """

    by_name: Mapping[str, Scope]
    sites: Mapping[str, tuple[CallSite | None, ...]]

    @classmethod
    def of(cls, graph: Graph) -> "Scopes":
        by_name = {"": Scope(graph=graph)}
        for name in sorted(reachable_functions(graph.nodes, graph.functions)):
            function = graph.functions[name]
            by_name[name] = Scope(graph=Graph(nodes=function.nodes), function=function)
        sites: dict[str, list[CallSite | None]] = {}
        for scope in by_name.values():
            for node in scope.graph.nodes:
                for name in called_functions(node.attrs) | ({node.op} & by_name.keys()):
                    sites.setdefault(name, []).append(_site(scope, node, name))
        return cls(by_name=by_name, sites={name: tuple(calls) for name, calls in sites.items()})

    def only_site(self, function: str) -> CallSite | None:
        """Call site of a function, if it is the only one and runs once."""
        sites = self.sites.get(function, ())
        if len(sites) != 1 or sites[0] is None:
            return None
        caller = sites[0].scope.name
        return sites[0] if not caller or self.only_site(caller) is not None else None


def _site(scope: Scope, node: Node, function: str) -> CallSite | None:
    if node.op == function:
        return CallSite(scope=scope, node=node, n_before=0)
    attributes, n_before = _CALLS.get(node.op, ((), 0))
    called = [node.attrs.get(attribute) for attribute in attributes]
    is_known = any(
        isinstance(function_ref, FunctionRef) and function_ref.name == function for function_ref in called
    )
    return CallSite(scope=scope, node=node, n_before=n_before) if is_known else None


_PASSING = (
    ENTERS
    | NEXT_ITERATIONS
    | {"Identity", "RefIdentity", "Switch", "RefSwitch", "Merge", "RefMerge", "Exit", "RefExit"}
)
_GIVEN = frozenset({"Placeholder", "PlaceholderV2", "PlaceholderWithDefault", "_Arg"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Origin of a handle.

    Attributes:
        device: device of the node that creates it, empty if TensorFlow places it.
        names: container and shared name of a variable, or values that identify another resource; None if
            unknown.
    """

    device: str
    names: tuple[str | bytes, ...] | None

    def may_be(self, other: "Origin") -> bool:
        if self.names is None or other.names is None:
            return True
        return self.names == other.names and _may_be_one(self.device, other.device)


_ANY = Origin(device="", names=None)


def handle_node(name: str, *, shared_name: str, dtype: DType, shape: Shape, device: str = "") -> Node:
    """A VarHandleOp."""
    attrs: dict[str, Attr] = {
        "allowed_devices": (),
        "container": b"",
        "debug_name": b"",
        "dtype": dtype,
        "shape": shape,
        "shared_name": shared_name.encode(),
    }
    return Node(name=name, op="VarHandleOp", attrs=attrs, device=device)


def origin_of_node(node: Node) -> Origin:
    """Origin of a VarHandleOp; two without a shared name on one device are one variable."""
    names = (node.attrs.get("container", b""), node.attrs.get("shared_name", b""))
    return Origin(device=node.device, names=tuple(n if isinstance(n, bytes) else b"" for n in names))


def origin(scopes: Scopes, scope: Scope, ref: str) -> Origin:
    """Origin of the handle that a reference names."""
    source_scope, source, node = _source(scopes, scope, ref)
    if node is None or node.op in _GIVEN or node.op in scopes.by_name or called_functions(node.attrs):
        return _ANY
    if node.op == "VarHandleOp":
        return origin_of_node(node)
    return Origin(device="", names=("elsewhere", source_scope.name, source))


def variable_of(scopes: Scopes, scope: Scope, ref: str) -> Node | None:
    """VarHandleOp that a handle comes from; None if it comes from another op or from several."""
    _, _, node = _source(scopes, scope, ref)
    return node if node is not None and node.op == "VarHandleOp" else None


def _source(scopes: Scopes, scope: Scope, ref: str) -> tuple[Scope, str, Node | None]:
    """Scope, reference and node that a handle comes from; no node for an argument or several sources."""
    waiting = [(scope, ref)]
    seen = {(scope.name, ref)}
    sources: list[tuple[Scope, str, Node | None]] = []
    for own, site in waiting:
        before = list(_before(scopes, own, site))
        if not before:
            sources.append((own, site, own.of_data(site)))
        for other, one in before:
            if (other.name, one) not in seen:
                seen.add((other.name, one))
                waiting.append((other, one))
    return sources[0] if len(sources) == 1 else (scope, ref, None)


def _before(scopes: Scopes, scope: Scope, ref: str) -> Iterator[tuple[Scope, str]]:
    """Possible sources of a handle, one step back; none if it is created here or unknown."""
    node = scope.of_data(ref)
    if node is None:
        yield from _passed(scopes, scope, producer(ref))
    elif node.op in ("Merge", "RefMerge"):
        yield from ((scope, data_input) for data_input in node.data_inputs)
    elif node.op in _PASSING:
        yield scope, node.data_inputs[0]
    elif node.op == "IdentityN":
        yield scope, node.data_inputs[scope.number(ref)]
    else:
        for called in _called(scopes, node):
            function = called.function
            assert function is not None
            yield called, function.results[_result(scope, node, function, ref)]


def _passed(scopes: Scopes, scope: Scope, argument: str) -> Iterator[tuple[Scope, str]]:
    site = scopes.only_site(scope.name) if scope.function is not None else None
    if site is None or scope.function is None:
        return
    yield site.scope, site.node.data_inputs[site.n_before + scope.places[argument]]


def _called(scopes: Scopes, node: Node) -> tuple[Scope, ...]:
    names = [node.op]
    for attribute in ("f", "then_branch", "else_branch"):
        called = node.attrs.get(attribute)
        names += [called.name] if isinstance(called, FunctionRef) else []
    return tuple(scopes.by_name[name] for name in names if name in scopes.by_name)


def _result(scope: Scope, node: Node, function: Function, ref: str) -> str:
    if node.op == function.name and scope.function is not None:
        return ref.split(":")[1]
    return function.outputs[scope.number(ref)].name


def _may_be_one(device: str, other: str) -> bool:
    """True if two partial device names can denote one device."""
    if device == other or not device or not other:
        return True
    mine, theirs = _parts(device), _parts(other)
    return all(mine[part] == theirs[part] for part in mine.keys() & theirs.keys())


@lru_cache(maxsize=4096)
def _parts(device: str) -> Mapping[str, str]:
    parts: dict[str, str] = {}
    for part in device.strip("/").lower().split("/"):
        key, _, value = part.partition(":")
        if key == "device":
            kind, _, value = value.partition(":")
        else:
            kind = "" if key in ("job", "replica", "task") else key
        named = {"kind": kind, "index": value} if kind else {key: value}
        parts |= {name: text for name, text in named.items() if text not in ("", "*")}
    return parts
