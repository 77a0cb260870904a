"""Programs of computations: nodes that one replica runs on its core, and who runs them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from strategies.ir.graph import DType, Node, producer


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
