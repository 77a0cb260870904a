"""Random numbers of two traces of one step: ops with states of their own draw alike with equal seeds.

TensorFlow makes the seed of such an op of its place among the operations of its trace, where capture has some
more.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from strategies.ir.graph import Attr, Graph, Node, producer
from strategies.ir.random_ops import draws_from_op
from strategies.ir.resource_uses import called
from strategies.ir.train_graph import TrainGraph
from strategies.ir.traversal import descendants

_Seeds: TypeAlias = tuple[Attr, Attr]
_Path: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Drawing:
    """A node that draws from a state of its own, and the function that it is in; None in the graph itself."""

    function: str | None
    node: Node

    @property
    def place(self) -> tuple[str | None, str]:
        """Function and node."""
        return self.function, self.node.name

    @property
    def seeds(self) -> _Seeds:
        """Both; zero where it has none."""
        return self.node.attrs.get("seed", 0), self.node.attrs.get("seed2", 0)


def with_seeds_of(step: TrainGraph, other: Graph) -> tuple[TrainGraph, tuple[str, ...]]:
    """A captured step that draws what another trace of it draws.

    Returns:
        the step, and its nodes whose draws differ all the same: they have no seed, or no counterpart.
    """
    own, others = dict(_drawing(step.graph)), dict(_drawing(other))
    seeds: dict[tuple[str | None, str], _Seeds] = {}
    unlike: dict[str, None] = {}
    for path, drawing in own.items():
        twin = others.get(path)
        given = None if twin is None or twin.node.op != drawing.node.op else twin.seeds
        if given is None or not any(given) or seeds.setdefault(drawing.place, given) != given:
            unlike[path[0]] = None
    if all(seeds.get(drawing.place, drawing.seeds) == drawing.seeds for drawing in own.values()):
        return step, tuple(unlike)
    graph = step.graph
    functions = {
        name: replace(function, nodes=_seeded(function.nodes, name, seeds))
        for name, function in graph.functions.items()
    }
    seeded = replace(graph, nodes=_seeded(graph.nodes, None, seeds), functions=functions)
    return replace(step, graph=seeded), tuple(unlike)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Parts of a step that depend on random numbers, drawn in it or in an earlier step.

    Attributes:
        loss: the loss depends on them.
    """

    variables: frozenset[str]
    loss: bool


def drawn_by(step: TrainGraph, drawing: Collection[str]) -> Drawn:
    """Return the parts of a step that depend on the draws of some nodes.

    Args:
        drawing: names of nodes.
    """
    users = {
        v.name: [
            n for n in step.graph.consumers.get(v.handle, ()) if v.handle in map(producer, n.data_inputs)
        ]
        for v in step.variables
    }
    reached: set[str] = set()
    nodes = descendants(step.graph, drawing, control=False)
    while True:
        # What takes a handle and depends on draws may assign.
        new = {name for name, own in users.items() if any(n.name in nodes for n in own)} - reached
        if not new:
            return Drawn(variables=frozenset(reached), loss=producer(step.losses[0].tensor) in nodes)
        reached |= new
        readers = [n.name for name in new for n in users[name]]
        nodes |= descendants(step.graph, readers, control=False)


def _drawing(graph: Graph) -> Iterator[tuple[_Path, _Drawing]]:
    """Path of callers and node → each node that draws, also within functions."""
    waiting: list[tuple[_Path, str | None, Sequence[Node]]] = [((), None, graph.nodes)]
    while waiting:
        path, function, nodes = waiting.pop()
        for node in nodes:
            if draws_from_op(node):
                yield (*path, node.name), _Drawing(function, node)
            for k, callee in enumerate(called(graph, node) if graph.functions else ()):
                if callee.name != function:
                    waiting.append(((*path, node.name, str(k)), callee.name, callee.nodes))


def _seeded(
    nodes: tuple[Node, ...], function: str | None, seeds: dict[tuple[str | None, str], _Seeds]
) -> tuple[Node, ...]:
    return tuple(
        replace(node, attrs={**node.attrs, "seed": given[0], "seed2": given[1]})
        if (given := seeds.get((function, node.name))) is not None
        else node
        for node in nodes
    )
