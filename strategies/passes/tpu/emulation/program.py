"""Programs of computations: nodes that one replica runs on its core, and who runs them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from strategies.ir.graph import Attr, DType, Node, Shape, TensorValue, producer
from strategies.ir.text.tensors import tensor_proto
from strategies.tf_bridge.snippet import TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Nodes of a graph with arguments, which have no nodes.

    Attributes:
        arguments: name → type, in order.
        results: name → reference, in order.
        waits: nodes that run in each call, whether results need them or not.
    """

    nodes: tuple[Node, ...]
    arguments: Mapping[str, DType]
    results: Mapping[str, str]
    waits: tuple[str, ...]

    def roots(self) -> tuple[str, ...]:
        """Nodes that a call runs, without those that they need."""
        results = (producer(ref) for ref in self.results.values())
        return tuple(dict.fromkeys((*self.waits, *(name for name in results if name not in self.arguments))))

    def with_nodes(self, nodes: Iterable[Node], *, waits: Iterable[str] = ()) -> "Program":
        """This program with other nodes, and more that run in each call."""
        return replace(self, nodes=tuple(nodes), waits=(*self.waits, *waits))


PLACE, PLACE_SPEC = "place", TensorSpec(dtype=DType("int32"), shape=Shape(()))
"""The node of a program that gives its replica's rank, and what that is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A replica among those that run a program together.

    Attributes:
        place: its rank.
        order: rank at each place of the group, as TensorFlow's collectives take them.
        group: how many they are, and the key of their group.
        device: its own. host: of its task.
    """

    place: int
    order: tuple[int, ...]
    group: tuple[int, int]
    device: str
    host: str

    def place_node(self) -> Node:
        """Its rank, for programs."""
        proto = tensor_proto("int32", (), (self.place,))
        attrs: dict[str, Attr] = {"dtype": DType("int32"), "value": TensorValue(proto)}
        return Node(name=PLACE, op="Const", attrs=attrs)
