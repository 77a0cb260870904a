"""A TensorFlow graph as plain values: nodes in order, a function library, an index of consumers."""

import math
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias


class DType(str):
    """A TensorFlow type by its proto name without `DT_`, in lower case: `float`, `int64`, `float_ref`.

    A class of its own because a plain `str` never is an attribute: TensorFlow's strings are bytes.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Shape:
    """A static shape; -1 is an unknown length, `dims` None an unknown rank."""

    dims: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class TensorValue:
    """A constant as a serialized TensorProto."""

    proto: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class FunctionRef:
    """A function of the library, with the attributes bound at this use."""

    name: str
    attrs: Mapping[str, "Attr"] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AttrPlaceholder:
    """An attribute that takes its value from the enclosing function's attribute of this name."""

    name: str


@dataclass(frozen=True, slots=True)
class OpaqueAttr:
    """A serialized AttrValue without a plain form."""

    proto: bytes


# A tuple is a list attribute with items of one kind.
Attr: TypeAlias = (
    "bytes | bool | int | float | DType | Shape | TensorValue | FunctionRef | AttrPlaceholder | OpaqueAttr"
    " | tuple[Attr, ...]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operation.

    Attributes:
        inputs: `name` or `name:k` for tensors (`name:output:k` in a function body), then, as TensorFlow
            requires, `^name` for control edges.
        attrs: attributes, shared between copies and never mutated.
        extra: the rest of the NodeDef (debug info, full type), serialized; empty almost always.
    """

    name: str
    op: str
    inputs: tuple[str, ...] = ()
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    device: str = ""
    extra: bytes = field(default=b"", repr=False)

    @property
    def data_inputs(self) -> tuple[str, ...]:
        return tuple(i for i in self.inputs if not i.startswith("^"))

    @property
    def control_inputs(self) -> tuple[str, ...]:
        return tuple(i[1:] for i in self.inputs if i.startswith("^"))

    @property
    def waits(self) -> tuple[str, ...]:
        """Control inputs as references."""
        return tuple(i for i in self.inputs if i.startswith("^"))

    def without_waits(self, removed: Container[str]) -> "Node":
        """The node without waits for some nodes; the same object if it waits for none of them."""
        if not any(name in removed for name in self.control_inputs):
            return self
        return self.changed(inputs=tuple(i for i in self.inputs if i[0] != "^" or i[1:] not in removed))

    def without_attrs(self, *names: str) -> "Node":
        """The node without some attributes; the same object if it has none of them."""
        if self.attrs.keys().isdisjoint(names):
            return self
        return self.changed(attrs={name: attr for name, attr in self.attrs.items() if name not in names})

    def waiting_for(self, *names: str) -> "Node":
        return self.changed(inputs=(*self.inputs, *after(names)))

    def changed(
        self,
        *,
        name: str | None = None,
        inputs: tuple[str, ...] | None = None,
        attrs: Mapping[str, Attr] | None = None,
        device: str | None = None,
    ) -> "Node":
        """A copy with the given fields; far cheaper than `dataclasses.replace`."""
        return Node(
            name=self.name if name is None else name,
            op=self.op,
            inputs=self.inputs if inputs is None else inputs,
            attrs=self.attrs if attrs is None else attrs,
            device=self.device if device is None else device,
            extra=self.extra,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Arg:
    """An argument or result of a function; `extra` is the rest of its ArgDef, serialized."""

    name: str
    dtype: DType | None
    extra: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One function of the library.

    Attributes:
        results: result name → tensor reference in the body.
        control_outputs: names of control results, as the signature lists them.
        control_results: control result name → node of the body.
        arg_attrs: position of an argument → attributes (handle shapes, user names).
        extra: the rest of the FunctionDef and its signature, serialized.
    """

    name: str
    inputs: tuple[Arg, ...]
    outputs: tuple[Arg, ...]
    nodes: tuple[Node, ...]
    results: Mapping[str, str]
    control_outputs: tuple[str, ...] = ()
    control_results: Mapping[str, str] = field(default_factory=dict)
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    arg_attrs: Mapping[int, Mapping[str, Attr]] = field(default_factory=dict)
    extra: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A graph and its function library. Not slotted: its indices are computed on first use and kept.

    Attributes:
        extra: the rest of the GraphDef (versions, custom gradients, debug info), serialized.
    """

    nodes: tuple[Node, ...]
    functions: Mapping[str, Function] = field(default_factory=dict)
    extra: bytes = field(default=b"", repr=False)

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Node, ...]]:
        """Nodes that read a node's outputs or wait for it, without repetition, in graph order."""
        consumers: dict[str, dict[str, Node]] = {}
        for node in self.nodes:
            for ref in node.inputs:
                consumers.setdefault(producer(ref), {})[node.name] = node
        return {name: tuple(users.values()) for name, users in consumers.items()}

    def with_nodes(self, nodes: Iterable[Node]) -> "Graph":
        return replace(self, nodes=tuple(nodes))


def producer(ref: str) -> str:
    """Name of the node of a reference (`name`, `name:k`, `^name`)."""
    if ref[0] == "^":
        return ref[1:]
    colon = ref.find(":")
    return ref if colon < 0 else ref[:colon]


def output_index(ref: str) -> int:
    """Output number of a graph's tensor reference."""
    _, _, index = ref.partition(":")
    return int(index) if index else 0


def tensor(name: str, index: int = 0) -> str:
    """Reference to an output of a node, as TensorFlow writes it."""
    return name if index == 0 else f"{name}:{index}"


def after(names: Iterable[str]) -> tuple[str, ...]:
    """Control inputs that wait for nodes."""
    return tuple(f"^{name}" for name in names)


def identity(name: str, ref: str, dtype: Attr, device: str = "", waits: Iterable[str] = ()) -> Node:
    """An Identity that waits for nodes."""
    return Node(name=name, op="Identity", inputs=(ref, *after(waits)), attrs={"T": dtype}, device=device)


def no_op(name: str, waits: Iterable[str], device: str = "") -> Node:
    """A NoOp that waits for nodes."""
    return Node(name=name, op="NoOp", inputs=after(waits), device=device)


def read_variable(name: str, handle: str, dtype: DType, device: str = "", waits: Iterable[str] = ()) -> Node:
    """A read of a variable that waits for nodes."""
    inputs = (handle, *after(waits))
    return Node(name=name, op="ReadVariableOp", inputs=inputs, attrs={"dtype": dtype}, device=device)


def assign_variable(
    name: str, handle: str, value: str, dtype: DType, device: str = "", waits: Iterable[str] = ()
) -> Node:
    """An assignment to a variable that waits for nodes."""
    inputs = (handle, value, *after(waits))
    return Node(name=name, op="AssignVariableOp", inputs=inputs, attrs={"dtype": dtype}, device=device)


def node_slug(name: str) -> str:
    """A variable's name with characters that node names exclude replaced by `_`."""
    slug = "".join(c if (c.isalnum() and c.isascii()) or c in "_./-" else "_" for c in name)
    return slug.strip("/") or "unnamed"


def free_name(name: str, used_names: Container[str]) -> str:
    """Name with `_` appended until it is not taken."""
    while name in used_names:
        name += "_"
    return name


_BYTES = {
    **dict.fromkeys(("bool", "int8", "uint8", "qint8", "quint8", "float8_e5m2", "float8_e4m3fn"), 1),
    **dict.fromkeys(("half", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("float", "int32", "uint32", "qint32"), 4),
    **dict.fromkeys(("double", "int64", "uint64", "complex64"), 8),
    "complex128": 16,
}


def element_bytes(dtype: str) -> int:
    """Bytes of one element; 0 for types without a fixed size."""
    return _BYTES.get(dtype, 0)


def n_elements(shape: Sequence[int]) -> int:
    """Elements of a tensor of this shape; 0 if a length is unknown."""
    return 0 if min(shape, default=0) < 0 else math.prod(shape)


def join_per_device(names: Iterable[tuple[str, str]], name: str) -> list[Node]:
    """Make one NoOp per device that waits for the named nodes there.

    Args:
        names: (node, device) pairs.
    """
    by_device: dict[str, list[str]] = defaultdict(list)
    for node, device in names:
        by_device[device].append(node)
    return [no_op(f"{name}_{k}", nodes, device) for k, (device, nodes) in enumerate(by_device.items())]
