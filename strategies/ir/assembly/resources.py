"""Replace placeholders of a trace by resources, and whole reads by row lookups."""

from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from strategies.errors import GraphError
from strategies.ir.assembly.traced import TracedStep, TracedVariable
from strategies.ir.control_flow import LOWERING_ATTR
from strategies.ir.graph import (
    DType,
    Graph,
    Node,
    Shape,
    after,
    free_name,
    identity,
    node_slug,
    producer,
    read_variable,
    tensor,
)
from strategies.ir.partitioning.facts import constant_fact
from strategies.ir.traversal import COLOCATION_ATTR, descendants, topological_order


@dataclass(frozen=True, slots=True)
class Access:
    """Nodes through which a session creates, loads and reads a variable."""

    handle: Node
    placeholder: Node
    load: Node
    read: Node

    def nodes(self) -> tuple[Node, Node, Node, Node]:
        return self.handle, self.placeholder, self.load, self.read


def access_nodes(variables: Sequence[TracedVariable]) -> dict[str, Access]:
    """Variable → its access nodes, under unique names."""
    access: dict[str, Access] = {}
    used_names: set[str] = set()
    for variable in variables:
        slug = free_name(f"variables/{node_slug(variable.name)}", used_names)
        used_names.add(slug)
        access[variable.name] = _variable_nodes(slug, variable.dtype, variable.shape)
    return access


def _variable_nodes(slug: str, dtype: DType, shape: Shape) -> Access:
    handle = Node(
        name=slug,
        op="VarHandleOp",
        attrs={
            "dtype": dtype,
            "shape": shape,
            "shared_name": slug.encode(),
            "container": b"",
            "allowed_devices": (),
        },
    )
    placeholder = Node(name=f"{slug}/initial", op="Placeholder", attrs={"dtype": dtype, "shape": shape})
    load = Node(
        name=f"{slug}/load",
        op="AssignVariableOp",
        inputs=(slug, placeholder.name),
        attrs={"dtype": dtype, "validate_shape": False},
    )
    return Access(handle, placeholder, load, read_variable(f"{slug}/read", slug, dtype))


def with_resources(traced: TracedStep, access: Mapping[str, Access]) -> Graph:
    """Replace captured placeholders by resources and constants of the graph.

    IdentityN is split, and colocations are dropped because plans decide placement. A loop or branch in a
    function runs as one node: TensorFlow would lower it into nodes without its device.
    """
    handles = {
        v.placeholder: access[v.name]
        for v in traced.variables
        if v.placeholder is not None and not v.constant
    }
    large = {v.placeholder: access[v.name] for v in traced.variables if v.constant}
    tables = {t.placeholder: t for t in traced.tables}
    renamed = {placeholder: a.handle.name for placeholder, a in handles.items() if placeholder}
    renamed |= {placeholder: table.handle for placeholder, table in tables.items()}
    nodes = [node for a in access.values() for node in a.nodes()]
    nodes += [node for table in traced.tables for node in table.nodes]
    for node in traced.graph.nodes:
        if node.name in handles or node.name in tables:
            continue
        if node.name in large:
            nodes.append(replace(large[node.name].read, name=node.name))
        elif node.name in traced.constants:
            nodes.append(traced.constants[node.name])
        elif node.op == "IdentityN" and not node.control_inputs:
            nodes += _split_identity_n(node, renamed)
        else:
            nodes.append(node.without_attrs(COLOCATION_ATTR))
    functions = {
        name: replace(f, nodes=tuple(node.without_attrs(LOWERING_ATTR) for node in f.nodes))
        for name, f in traced.graph.functions.items()
    }
    return replace(traced.graph, nodes=tuple(redirected(nodes, renamed)), functions=functions)


def _split_identity_n(node: Node, renamed: dict[str, str]) -> Iterator[Node]:
    """Split IdentityN into one Identity per value: Keras's clipping ties all updates to all gradients."""
    types = node.attrs["T"]
    assert isinstance(types, tuple)
    for i, (ref, dtype) in enumerate(zip(node.inputs, types, strict=True)):
        name = node.name if i == 0 else f"{node.name}/{i}"
        renamed[tensor(node.name, i)] = name
        yield identity(name, ref, dtype, node.device)


def redirected(nodes: Iterable[Node], renamed: Mapping[str, str]) -> list[Node]:
    """Redirect inputs by full reference, or by the producer of output 0."""
    return [
        replace(node, inputs=tuple(_follow(ref, renamed) for ref in node.inputs))
        if any(ref.lstrip("^") in renamed or ref.removesuffix(":0") in renamed for ref in node.inputs)
        else node
        for node in nodes
    ]


def _follow(ref: str, renamed: Mapping[str, str]) -> str:
    if ref[0] == "^":
        return "^" + renamed.get(ref[1:], ref[1:])
    return renamed.get(ref) or renamed.get(ref.removesuffix(":0")) or ref


_BY_ELEMENT = frozenset({"Cast", "Identity"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gather:
    """A gather of rows from a variable's value.

    Attributes:
        passed: nodes between the read and the gather, in order.
    """

    read: Node
    passed: tuple[Node, ...]
    node: Node


def with_row_lookups(graph: Graph, handles: Collection[str]) -> Graph:
    """Gather rows of a variable instead of rows of its value.

    Keras's `Embedding` reads its whole table first. Nodes that wait for the read then wait for the lookup;
    casts move behind it. The graph is unchanged if lookups would wait for each other.
    """
    lookups: dict[str, tuple[Node, ...]] = {}
    looked_up: defaultdict[str, list[str]] = defaultdict(list)
    passed: dict[str, Node] = {}
    for gather in _gathers(graph, handles):
        nodes = _lookup(graph, gather)
        lookups[gather.node.name] = nodes
        looked_up[gather.read.name].append(nodes[0].name)
        passed |= {node.name: node for node in gather.passed}
    if not lookups:
        return graph
    idle = lookups.keys() | _idle(graph, passed, lookups)
    needed = {producer(ref) for node in graph.nodes if node.name not in idle for ref in node.data_inputs}
    rewritten = [
        _waiting(copy, looked_up, needed) for node in graph.nodes for copy in lookups.get(node.name, (node,))
    ]
    try:
        topological_order(rewritten)
    except GraphError:
        return graph  # ids of two tables depend on each other's updates
    return graph.with_nodes(rewritten)


def _gathers(graph: Graph, handles: Collection[str]) -> Iterator[_Gather]:
    for read in graph.nodes:
        if read.op != "ReadVariableOp" or read.inputs[0] not in handles:
            continue
        gathers = list(_of_read(graph, read))
        if gathers:
            users = graph.consumers.get(read.name, ())
            later = descendants(graph, [user.name for user in users if read.name in user.control_inputs])
            yield from (gather for gather in gathers if gather.node.name not in later)


def _of_read(graph: Graph, read: Node) -> Iterator[_Gather]:
    waiting: list[tuple[str, tuple[Node, ...]]] = [(read.name, ())]
    while waiting:
        name, passed = waiting.pop()
        for user in graph.consumers.get(name, ()):
            if user.op in _BY_ELEMENT and name in map(producer, user.data_inputs):
                waiting.append((user.name, (*passed, user)))
            elif _takes_rows(graph, user, name):
                yield _Gather(read=read, passed=passed, node=user)


def _takes_rows(graph: Graph, node: Node, value: str) -> bool:
    if node.op != "GatherV2" or node.attrs.get("batch_dims", 0) != 0:
        return False
    params, indices, axis = map(producer, node.data_inputs)
    return params == value != indices and constant_fact(graph.by_name[axis]).values == (0,)


def _lookup(graph: Graph, gather: _Gather) -> tuple[Node, ...]:
    own = (gather.read, *gather.passed, gather.node)
    waits = dict.fromkeys(ref for node in own for ref in node.waits)
    names = [free_name(f"{gather.node.name}/rows_{k}", graph.by_name) for k in range(len(gather.passed))]
    names.append(gather.node.name)
    rows = Node(
        name=names[0],
        op="ResourceGather",
        inputs=(gather.read.inputs[0], gather.node.data_inputs[1], *waits),
        attrs={
            "dtype": gather.read.attrs["dtype"],
            "Tindices": gather.node.attrs["Tindices"],
            "batch_dims": 0,
            "validate_indices": True,
        },
        device=gather.node.device,
    )
    steps = zip(gather.passed, names, names[1:], strict=False)
    return rows, *(replace(node, name=name, inputs=(before,)) for node, before, name in steps)


def _idle(graph: Graph, passed: Mapping[str, Node], lookups: Collection[str]) -> set[str]:
    idle: set[str] = set()
    for node in reversed(topological_order(passed.values())):
        if all(user.name in idle or user.name in lookups for user in graph.consumers.get(node.name, ())):
            idle.add(node.name)
    return idle


def _waiting(node: Node, looked_up: Mapping[str, Sequence[str]], needed: Container[str]) -> Node:
    if looked_up.keys().isdisjoint(node.control_inputs):
        return node
    waits: dict[str, None] = {}
    for name in node.control_inputs:
        if name not in looked_up or name in needed:
            waits[name] = None
        waits |= dict.fromkeys(looked_up.get(name, ()))
    return node.changed(inputs=(*node.data_inputs, *after(waits)))
