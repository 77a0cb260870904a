"""Handles of variables: which variable one is of, through identities, loops and calls."""

from dataclasses import dataclass

from strategies.ir.graph import Node, producer
from strategies.ir.traversal import ENTERS
from strategies.passes.tpu.scopes import Scope, Scopes

NEXT_ITERATIONS = frozenset({"NextIteration", "RefNextIteration"})
_PASSING = ENTERS | {"Identity", "Switch", "RefSwitch", "RefIdentity"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a handle comes from.

    Attributes:
        device: of the node that makes it, empty where TensorFlow places it.
        names: container and shared name of a variable, which its handles have in common; else whatever tells
            this source of handles from all others.
    """

    device: str
    names: tuple[str | bytes, ...]

    def may_be(self, other: "Origin") -> bool:
        """Whether both can be one variable; nobody knows where what has no device will be."""
        same_device = self.device == other.device or not self.device or not other.device
        return self.names == other.names and same_device


def origin_of_node(node: Node) -> Origin:
    """The variable of a VarHandleOp; two without a shared name on one device are one variable."""
    names = (node.attrs.get("container", b""), node.attrs.get("shared_name", b""))
    return Origin(device=node.device, names=tuple(n if isinstance(n, bytes) else b"" for n in names))


def origin(scopes: Scopes, scope: Scope, ref: str) -> Origin:
    """The origin of the handle that a reference names."""
    found_scope, found, node = _followed(scopes, scope, ref)
    if node is not None and node.op == "VarHandleOp":
        return origin_of_node(node)
    return Origin(device="", names=("elsewhere", found_scope.name, found))


def variable_of(scopes: Scopes, scope: Scope, ref: str) -> Node | None:
    """The VarHandleOp that a handle comes from; None where it comes from anything else."""
    _, _, node = _followed(scopes, scope, ref)
    return node if node is not None and node.op == "VarHandleOp" else None


def _followed(scopes: Scopes, scope: Scope, ref: str) -> tuple[Scope, str, Node | None]:
    """Where a handle comes from: scope, reference, and node if it is no argument of a function."""
    passed: set[str] = set()
    while (node := scope.of_data(ref)) is not None and node.name not in passed:
        passed.add(node.name)
        if node.op == "Merge":
            ref = next((r for r in node.data_inputs if not _comes_back(scope, r)), node.data_inputs[0])
        elif node.op in _PASSING:
            ref = node.data_inputs[0]
        else:
            return scope, ref, node
    site = scopes.only_site(scope.name) if node is None and scope.function is not None else None
    if site is None or scope.function is None:
        return scope, ref, node
    name = producer(ref)
    position = next(i for i, arg in enumerate(scope.function.inputs) if arg.name == name)
    return _followed(scopes, site.scope, site.node.data_inputs[site.n_before + position])


def _comes_back(scope: Scope, ref: str) -> bool:
    node = scope.of_data(ref)
    return node is not None and node.op in NEXT_ITERATIONS
