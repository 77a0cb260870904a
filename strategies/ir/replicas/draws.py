"""Sources of a step's random numbers, so that others can be fed in their place."""

from collections.abc import Iterable
from dataclasses import dataclass

from strategies.ir.functions import reachable_functions
from strategies.ir.graph import Graph, producer
from strategies.ir.replicas.seeds import draws, draws_statelessly
from strategies.ir.traversal import ENTERS, ancestors, descendants

_EXITS = frozenset({"Exit", "RefExit"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """What nodes of a graph draw at random.

    Attributes:
        tensors: references that carry draws to other nodes; a session can feed them.
        hidden: nodes that draw within a function or a loop, where nothing can be fed.
    """

    tensors: tuple[str, ...]
    hidden: tuple[str, ...]


def draws_of(graph: Graph, wanted: Iterable[str]) -> Draws:
    """What some nodes need of random numbers, from a state or of a seed.

    Args:
        wanted: names of nodes.
    """
    needed = ancestors(graph, wanted, control=False)
    drawing = [
        n for n in graph.nodes if n.name in needed and (draws(graph, n) or draws_statelessly(graph, n))
    ]
    if not drawing:
        return Draws(tensors=(), hidden=())
    exits = {n.name for n in graph.nodes if n.op in _EXITS}
    in_loops = descendants(graph, (n.name for n in graph.nodes if n.op in ENTERS), stop=exits)
    hidden = {n.name for n in drawing if n.name in in_loops or reachable_functions((n,), graph.functions)}
    names = {n.name for n in drawing} - hidden
    tensors = dict.fromkeys(
        ref
        for node in graph.nodes
        if node.name in needed
        for ref in node.data_inputs
        if producer(ref) in names
    )
    return Draws(tensors=tuple(tensors), hidden=tuple(n.name for n in drawing if n.name in hidden))
