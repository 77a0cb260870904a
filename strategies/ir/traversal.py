"""Walks over a graph and its function library, and copies of its parts, each in linear time."""

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from strategies.errors import GraphError
from strategies.ir.graph import Attr, Function, FunctionRef, Graph, Node, producer
from strategies.ir.ops import ENTERS, MERGES, NEXT_ITERATIONS

_HOLDERS = (tuple, FunctionRef)


def called_functions(attrs: Mapping[str, Attr]) -> set[str]:
    """Names of functions in attributes, in lists and bound attributes too."""
    names: set[str] = set()
    # Few attributes of a graph can hold a reference.
    waiting = [attr for attr in attrs.values() if isinstance(attr, _HOLDERS)]
    while waiting:
        attr = waiting.pop()
        if isinstance(attr, FunctionRef):
            names.add(attr.name)
            attr = tuple(attr.attrs.values())
        waiting += [item for item in attr if isinstance(item, _HOLDERS)]
    return names


def reachable_functions(nodes: Iterable[Node], functions: Mapping[str, Function]) -> set[str]:
    """Names of functions that nodes call, directly or through others."""
    reachable: set[str] = set()
    waiting = [nodes]
    seen: set[int] = set()
    while waiting:
        for node in waiting.pop():
            called = {node.op}
            if id(node.attrs) not in seen:
                seen.add(id(node.attrs))
                called |= called_functions(node.attrs)
            for name in called:
                if name in functions and name not in reachable:
                    reachable.add(name)
                    waiting.append(functions[name].nodes)
    return reachable


def functions_reaching(functions: Mapping[str, Function], sought: Callable[[Node], bool]) -> set[str]:
    """Names of functions that contain such a node, directly or through calls."""
    callers: dict[str, list[str]] = {}
    waiting = []
    for name, function in functions.items():
        called = {node.op for node in function.nodes}.union(
            *(called_functions(n.attrs) for n in function.nodes)
        )
        for callee in called & functions.keys():
            callers.setdefault(callee, []).append(name)
        if any(map(sought, function.nodes)):
            waiting.append(name)
    reaching: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in reaching:
            reaching.add(name)
            waiting += callers.get(name, ())
    return reaching


def renamed_functions(node: Node, renamed: Mapping[str, str]) -> Node:
    """Rename the functions that a node calls; the same object if it calls none of them."""
    if not renamed:
        return node
    op = renamed.get(node.op, node.op)
    attrs = {key: _renamed(value, renamed) for key, value in node.attrs.items()}
    return node if (op, attrs) == (node.op, node.attrs) else replace(node, op=op, attrs=attrs)


def _renamed(value: Attr, renamed: Mapping[str, str]) -> Attr:
    if isinstance(value, FunctionRef):
        attrs = {key: _renamed(bound, renamed) for key, bound in value.attrs.items()}
        return replace(value, name=renamed.get(value.name, value.name), attrs=attrs)
    if isinstance(value, tuple):
        return tuple(_renamed(item, renamed) for item in value)
    return value


def copied_functions(
    functions: Mapping[str, Function],
    renamed: Mapping[str, str],
    change: Callable[[tuple[Node, ...]], tuple[Node, ...]],
) -> dict[str, Function]:
    """Copies of functions under new names, with changed nodes."""
    return {
        new: replace(functions[old], name=new, nodes=change(functions[old].nodes))
        for old, new in renamed.items()
    }


def with_function_prefix(graph: Graph, prefix: str) -> Graph:
    """Put a prefix before the names of all functions."""
    renamed = {name: prefix + name for name in graph.functions}

    def calling_copies(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        return tuple(renamed_functions(node, renamed) for node in nodes)

    functions = copied_functions(graph.functions, renamed, calling_copies)
    return replace(graph, nodes=calling_copies(graph.nodes), functions=functions)


def drop_unreachable_functions(graph: Graph) -> Graph:
    """Drop functions that no node calls; the same object if all are called."""
    reachable = reachable_functions(graph.nodes, graph.functions)
    if len(reachable) == len(graph.functions):
        return graph
    return replace(graph, functions={name: f for name, f in graph.functions.items() if name in reachable})


COLOCATION_ATTR = "_class"
COLOCATION_PREFIX = b"loc:@"


def ancestors(
    graph: Graph, names: Iterable[str], *, stop: Container[str] = (), control: bool = True
) -> set[str]:
    """The named nodes and all nodes that they depend on.

    Args:
        stop: nodes at which the walk ends; they are not in the result.
        control: True to follow control edges too.
    Raises:
        GraphError: a needed node is not in the graph.
    """
    by_name = graph.by_name
    visited: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in visited or name in stop:
            continue
        visited.add(name)
        try:
            inputs = by_name[name].inputs
        except KeyError:
            raise GraphError(
                f"node {name!r} is needed but not in the graph; keep it or redirect its users"
            ) from None
        waiting += [producer(ref) for ref in inputs if control or ref[0] != "^"]
    return visited


def descendants(
    graph: Graph, names: Iterable[str], *, stop: Container[str] = (), control: bool = True
) -> set[str]:
    """The named nodes and all nodes that depend on them; arguments as in `ancestors`."""
    consumers = graph.consumers
    visited: set[str] = set()
    # A sum of all gradients has too many inputs to search them for each one.
    read_by: dict[str, frozenset[str]] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in visited or name in stop:
            continue
        visited.add(name)
        for user in consumers.get(name, ()):
            if user.name in visited or user.name in stop:
                continue
            if not control and user.name not in read_by:
                read_by[user.name] = frozenset(map(producer, user.data_inputs))
            if control or name in read_by[user.name]:
                waiting.append(user.name)
    return visited


def topological_order(nodes: Collection[Node]) -> tuple[Node, ...]:
    """Order nodes after their inputs, keeping an order that already holds.

    NextIteration into Merge is no edge here. Inputs from other nodes are ignored.

    Raises:
        GraphError: the nodes have a cycle without NextIteration.
    """
    by_name = {node.name: node for node in nodes}
    ordered: dict[str, Node] = {}
    open_names: set[str] = set()
    for root in nodes:
        # Most references are only a name and need no parsing.
        if all(r in ordered or (n := producer(r)) in ordered or n not in by_name for r in root.inputs):
            ordered[root.name] = root
            continue
        stack = [root]
        while stack:
            node = stack[-1]
            if node.name in ordered:
                stack.pop()
                continue
            open_names.add(node.name)
            needed = [by_name[name] for name in _needs(node, by_name) if name not in ordered]
            if not needed:
                ordered[node.name] = stack.pop()
                continue
            for other in needed:
                if other.name in open_names and other.name not in ordered:
                    raise GraphError(
                        f"node {node.name!r}: {other.name!r}, which it needs, needs it too; "
                        "only NextIteration may close a cycle, into a Merge"
                    )
            stack += reversed(needed)
    return tuple(ordered.values())


def _needs(node: Node, by_name: Mapping[str, Node]) -> list[str]:
    names = [name for name in map(producer, node.inputs) if name in by_name]
    if node.op in MERGES:
        return [name for name in names if by_name[name].op not in NEXT_ITERATIONS]
    return names


class Renames(dict[str, str]):
    """Reference → reference to its producer's copy (`names`: node → copy), unchanged if not copied."""

    def __init__(self, names: Mapping[str, str]) -> None:
        super().__init__(names)
        self.names = names

    def __missing__(self, ref: str) -> str:
        name = producer(ref)
        copy = self.names.get(name)
        if copy is None:
            renamed = ref
        elif ref[0] == "^":
            renamed = f"^{copy}"
        else:
            renamed = copy + ref[len(name) :]
        self[ref] = renamed
        return renamed


def copy_nodes(
    nodes: Iterable[Node],
    prefix: str,
    *,
    rewire: Mapping[str, str] = MappingProxyType({}),
    device: Callable[[Node], str] | None = None,
) -> tuple[Node, ...]:
    """Copy nodes under a prefix, with references, colocations and frames that follow the copies.

    Unchanged attributes are shared with the original.

    Args:
        rewire: original reference (`name`, `name:1`, `^name`) → reference that the copies read.
        device: function from a node to its copy's device; by default the node's own device.
    """
    originals = list(nodes)
    renames = Renames({node.name: prefix + node.name for node in originals})
    renames.update(rewire)
    return renamed_copies(originals, renames, frames=prefix, device=device)


def renamed_copies(
    nodes: Iterable[Node], renames: Renames, *, frames: str, device: Callable[[Node], str] | None = None
) -> tuple[Node, ...]:
    """Copy nodes under given names.

    Args:
        renames: name of each node's copy.
        frames: prefix of the Enter nodes' frame names.
    """
    renamed = renames.__getitem__
    copies = []
    for node in nodes:
        attrs = node.attrs
        if COLOCATION_ATTR in attrs or node.op in ENTERS:
            attrs = _copied_attrs(node, frames, renames.names)
        copies.append(
            Node(
                name=renames.names[node.name],
                op=node.op,
                inputs=tuple(map(renamed, node.inputs)),
                attrs=attrs,
                device=node.device if device is None else device(node),
                extra=node.extra,
            )
        )
    return tuple(copies)


def _copied_attrs(node: Node, frames: str, copied: Mapping[str, str]) -> Mapping[str, Attr]:
    attrs = dict(node.attrs)
    frame = attrs.get("frame_name")
    if node.op in ENTERS and isinstance(frame, bytes):
        attrs["frame_name"] = frames.encode() + frame
    names = colocations(node)
    if any(name in copied for name in names):
        renamed = tuple(copied.get(name, name) for name in names)
        attrs[COLOCATION_ATTR] = tuple(COLOCATION_PREFIX + name.encode() for name in renamed)
    return attrs


def colocations(node: Node) -> tuple[str, ...]:
    """Names of nodes whose device this one must share."""
    groups = node.attrs.get(COLOCATION_ATTR, ())
    if not isinstance(groups, tuple):
        return ()
    return tuple(
        group.removeprefix(COLOCATION_PREFIX).decode()
        for group in groups
        if isinstance(group, bytes) and group.startswith(COLOCATION_PREFIX)
    )


def prune(graph: Graph, roots: Iterable[str]) -> Graph:
    """Keep the nodes that roots need and the functions that these call; colocations with others are dropped.

    Returns:
        The same object if everything is needed.
    Raises:
        GraphError: a root or a node that it needs is not in the graph.
    """
    needed = ancestors(graph, roots)
    if len(needed) == len(graph.nodes):
        return drop_unreachable_functions(graph)
    nodes = (_without_lost_colocations(node, needed) for node in graph.nodes if node.name in needed)
    return drop_unreachable_functions(graph.with_nodes(nodes))


def _without_lost_colocations(node: Node, present: Container[str]) -> Node:
    if COLOCATION_ATTR not in node.attrs:
        return node
    names = colocations(node)
    present_names = tuple(name for name in names if name in present)
    if len(present_names) == len(names):
        return node
    if not present_names:
        return node.without_attrs(COLOCATION_ATTR)
    encoded = tuple(COLOCATION_PREFIX + name.encode() for name in present_names)
    return node.changed(attrs={**node.attrs, COLOCATION_ATTR: encoded})


def levels_of(graph: Graph, marks: Collection[str]) -> dict[str, int]:
    """Node → number of marks on the longest path to it, itself included."""
    levels: dict[str, int] = {}
    for node in topological_order(graph.nodes):
        before = max((levels.get(producer(ref), 0) for ref in node.inputs), default=0)
        levels[node.name] = before + (node.name in marks)
    return levels


def at_level(name: str, level: int) -> str:
    """Name of an exchange at a level of the step."""
    return name if level == 1 else f"{name}/level_{level}"
