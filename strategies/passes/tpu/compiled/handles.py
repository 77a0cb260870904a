"""Handles of variables: which variable one is of, through identities, loops, branches and calls."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from strategies.ir.functions import called_functions
from strategies.ir.graph import Attr, DType, Function, FunctionRef, Node, Shape, producer
from strategies.ir.traversal import ENTERS
from strategies.passes.tpu.compiled.scopes import Scope, Scopes

NEXT_ITERATIONS = frozenset({"NextIteration", "RefNextIteration"})
WHILES = frozenset({"While", "StatelessWhile"})
_PASSING = (
    ENTERS
    | NEXT_ITERATIONS
    | {"Identity", "RefIdentity", "Switch", "RefSwitch", "Merge", "RefMerge", "Exit", "RefExit"}
)
_GIVEN = frozenset({"Placeholder", "PlaceholderV2", "PlaceholderWithDefault", "_Arg"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a handle comes from.

    Attributes:
        device: of the node that makes it, empty where TensorFlow places it.
        names: container and shared name of a variable, which its handles have in common, or whatever tells
            another resource from all others; None where it may be any variable.
    """

    device: str
    names: tuple[str | bytes, ...] | None

    def may_be(self, other: "Origin") -> bool:
        """Whether both can be one variable; nobody knows where what has no device will be."""
        if self.names is None or other.names is None:
            return True
        return self.names == other.names and _may_be_one(self.device, other.device)


_ANY = Origin(device="", names=None)


def handle_node(name: str, *, shared_name: str, dtype: DType, shape: Shape, device: str = "") -> Node:
    """A node that gives the handle of a variable."""
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
    """The variable of a VarHandleOp; two without a shared name on one device are one variable."""
    names = (node.attrs.get("container", b""), node.attrs.get("shared_name", b""))
    return Origin(device=node.device, names=tuple(n if isinstance(n, bytes) else b"" for n in names))


def origin(scopes: Scopes, scope: Scope, ref: str) -> Origin:
    """The origin of the handle that a reference names."""
    found_scope, found, node = _source(scopes, scope, ref)
    if node is None or node.op in _GIVEN or node.op in scopes.by_name or called_functions(node.attrs):
        return _ANY
    if node.op == "VarHandleOp":
        return origin_of_node(node)
    return Origin(device="", names=("elsewhere", found_scope.name, found))


def variable_of(scopes: Scopes, scope: Scope, ref: str) -> Node | None:
    """The VarHandleOp that a handle comes from; None where it comes from anything else, or from several."""
    _, _, node = _source(scopes, scope, ref)
    return node if node is not None and node.op == "VarHandleOp" else None


def _source(scopes: Scopes, scope: Scope, ref: str) -> tuple[Scope, str, Node | None]:
    """Scope, reference and node that a handle comes from; the node is None of an argument, and of several."""
    waiting = [(scope, ref)]
    seen = {(scope.name, ref)}
    sources: list[tuple[Scope, str, Node | None]] = []
    for own, each in waiting:
        before = list(_before(scopes, own, each))
        if not before:
            sources.append((own, each, own.of_data(each)))
        for other, one in before:
            if (other.name, one) not in seen:
                seen.add((other.name, one))
                waiting.append((other, one))
    return sources[0] if len(sources) == 1 else (scope, ref, None)


def _before(scopes: Scopes, scope: Scope, ref: str) -> Iterator[tuple[Scope, str]]:
    """What a handle can be one step before; nothing where it is made, or where that is not known."""
    node = scope.of_data(ref)
    if node is None:
        yield from _passed(scopes, scope, producer(ref))
    elif node.op in ("Merge", "RefMerge"):
        yield from ((scope, each) for each in node.data_inputs)
    elif node.op in _PASSING:
        yield scope, node.data_inputs[0]
    elif node.op == "IdentityN":
        yield scope, node.data_inputs[scope.number(ref)]
    else:
        for called in _called(scopes, node):
            function = called.function
            assert function is not None
            yield called, function.results[_result(scope, node, function, ref)]
        if node.op in WHILES:
            yield scope, node.data_inputs[scope.number(ref)]


def _passed(scopes: Scopes, scope: Scope, argument: str) -> Iterator[tuple[Scope, str]]:
    """What an argument of a function is where it is called, if that is one place."""
    site = scopes.only_site(scope.name) if scope.function is not None else None
    if site is None or scope.function is None:
        return
    place = scope.places[argument]
    yield site.scope, site.node.data_inputs[site.n_before + place]
    body = site.node.attrs.get("body")
    if site.node.op in WHILES and isinstance(body, FunctionRef):
        handing_on = scopes.by_name[body.name]
        assert handing_on.function is not None
        yield handing_on, handing_on.function.results[handing_on.function.outputs[place].name]


def _called(scopes: Scopes, node: Node) -> tuple[Scope, ...]:
    """Functions whose results are what a node gives."""
    names = [node.op]
    for attribute in ("f", "then_branch", "else_branch", "body"):
        called = node.attrs.get(attribute)
        names += [called.name] if isinstance(called, FunctionRef) else []
    return tuple(scopes.by_name[name] for name in names if name in scopes.by_name)


def _result(scope: Scope, node: Node, function: Function, ref: str) -> str:
    """The result of a function that a reference to a call names."""
    if node.op == function.name and scope.function is not None:
        return ref.split(":")[1]
    return function.outputs[scope.number(ref)].name


def _may_be_one(device: str, other: str) -> bool:
    """Whether two names, of which each may leave out parts, can be of one device."""
    if device == other or not device or not other:
        return True
    mine, theirs = _parts(device), _parts(other)
    return all(mine[part] == theirs[part] for part in mine.keys() & theirs.keys())


@lru_cache(maxsize=4096)
def _parts(device: str) -> Mapping[str, str]:
    parts: dict[str, str] = {}
    for each in device.strip("/").lower().split("/"):
        key, _, value = each.partition(":")
        if key == "device":
            kind, _, value = value.partition(":")
        else:
            kind = "" if key in ("job", "replica", "task") else key
        named = {"kind": kind, "index": value} if kind else {key: value}
        parts |= {name: text for name, text in named.items() if text not in ("", "*")}
    return parts
