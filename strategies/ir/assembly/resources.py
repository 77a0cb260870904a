"""Resources in place of what stood for them in a trace: variables, tables, constants."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from strategies.ir.assembly.traced import TracedStep, TracedVariable
from strategies.ir.control_flow.branches import LOWERING_ATTR
from strategies.ir.graph import DType, Function, Graph, Node, Shape, tensor
from strategies.ir.names import node_slug
from strategies.ir.traversal import COLOCATION_ATTR


@dataclass(frozen=True, slots=True)
class Access:
    """Nodes through which a session creates, loads and reads a variable."""

    handle: Node
    placeholder: Node
    load: Node
    read: Node

    def nodes(self) -> tuple[Node, Node, Node, Node]:
        """All four, each after what it needs."""
        return self.handle, self.placeholder, self.load, self.read


def access_nodes(variables: Sequence[TracedVariable]) -> dict[str, Access]:
    """Variable → its nodes; names that differ only in what node names cannot hold get different nodes."""
    access: dict[str, Access] = {}
    taken: set[str] = set()
    for variable in variables:
        slug = f"variables/{node_slug(variable.name)}"
        while slug in taken:
            slug += "_"
        taken.add(slug)
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
    read = Node(name=f"{slug}/read", op="ReadVariableOp", inputs=(slug,), attrs={"dtype": dtype})
    return Access(handle, placeholder, load, read)


def with_resources(traced: TracedStep, access: Mapping[str, Access]) -> Graph:
    """The traced graph with resources of its own.

    Constants come in place of captured tensors, IdentityN is taken apart, and colocations are dropped: a step
    is captured for one device, and where nodes run is what plans decide. A loop or branch in a function runs
    as one node, for TensorFlow would take it apart into nodes without its device.
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
            nodes.append(_reading(node.name, large[node.name]))
        elif node.name in traced.constants:
            nodes.append(traced.constants[node.name])
        elif node.op == "IdentityN" and not node.control_inputs:
            nodes += _taken_apart(node, renamed)
        else:
            nodes.append(_without(node, COLOCATION_ATTR))
    functions = {name: _in_one_place(f) for name, f in traced.graph.functions.items()}
    return replace(traced.graph, nodes=tuple(redirected(nodes, renamed)), functions=functions)


def _reading(name: str, access: Access) -> Node:
    return replace(access.read, name=name)


def _taken_apart(node: Node, renamed: dict[str, str]) -> Iterator[Node]:
    """An Identity for each value: Keras clips through IdentityN, which ties all updates to all gradients."""
    types = node.attrs["T"]
    assert isinstance(types, tuple)
    for i, (ref, dtype) in enumerate(zip(node.inputs, types, strict=True)):
        name = node.name if i == 0 else f"{node.name}/{i}"
        renamed[tensor(node.name, i)] = name
        yield Node(name=name, op="Identity", inputs=(ref,), attrs={"T": dtype}, device=node.device)


def _in_one_place(function: Function) -> Function:
    return replace(function, nodes=tuple(_without(node, LOWERING_ATTR) for node in function.nodes))


def _without(node: Node, attr: str) -> Node:
    if attr not in node.attrs:
        return node
    return replace(node, attrs={key: a for key, a in node.attrs.items() if key != attr})


def redirected(nodes: Iterable[Node], renamed: Mapping[str, str]) -> list[Node]:
    """Nodes whose inputs follow `renamed` (by full reference, or by the producer of output 0)."""
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
