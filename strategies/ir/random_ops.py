"""Random numbers of a step: operations that draw, their seeds, and a rank's own seeds.

Rank 0 draws the captured step's numbers, every other rank its own.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from strategies.errors import UnsupportedError
from strategies.ir.graph import Graph, Node, producer
from strategies.ir.ops import ENTERS, EXITS
from strategies.ir.resource_uses import inputs_reaching
from strategies.ir.traversal import (
    ancestors,
    copied_functions,
    descendants,
    functions_reaching,
    reachable_functions,
    renamed_functions,
)

_MASK = (1 << 31) - 1
_GENERATOR_OPS = (
    "Rng",
    "StatefulUniform",
    "StatefulStandardNormal",
    "StatefulTruncatedNormal",
    "StatefulRandom",
)
_SEEDED_OPS = (
    "Random",
    "TruncatedNormal",
    "ParameterizedTruncatedNormal",
    "Multinomial",
    "SampleDistortedBoundingBox",
    "FractionalMaxPool",
    "FractionalAvgPool",
)
_SAMPLERS = "CandidateSampler"
_DRAWS_NOTHING = frozenset(
    {"ComputeAccidentalHits"}
)  # it compares ids, and has seed attributes like samplers
# Ops whose output depends only on shapes: no seed passes through them.
SHAPES = frozenset({"Shape", "ShapeN", "Size", "Rank", "VariableShape"})
_TELLS_ALGORITHM = frozenset({"StatelessRandomGetAlg"})
_SEEDS_AT = {
    "StatelessRandomGetKeyCounter": frozenset({0}),
    "StatelessRandomGetKeyCounterAlg": frozenset({0}),
    "StatelessMultinomial": frozenset({2}),
    "StatelessRandomGammaV2": frozenset({1}),
}
"""Op → its seed inputs; other ops have the seed second, or a key and a counter after the shape."""
_OF_KEY = ("V2", "V3")
_STATELESS_OPS = (
    "StatelessRandom",
    "StatelessTruncatedNormal",
    "StatelessMultinomial",
    "StatelessParameterized",
)


def is_random_op(op: str) -> bool:
    """True if an op draws from a state, its own or a generator's."""
    return op.startswith(_GENERATOR_OPS) or _is_seeded_op(op)


def draws_from_op(node: Node) -> bool:
    """True if a node draws from a state of its own."""
    return _is_seeded_op(node.op)


def draws(graph: Graph, node: Node) -> bool:
    """True if a node, or a function that it calls, draws from a state."""
    return any(is_random_op(op) for op in _ops(graph, node))


def moves_generator(graph: Graph, node: Node) -> bool:
    """True if a node, or a function that it calls, draws from a generator's variable."""
    return any(op.startswith(_GENERATOR_OPS) for op in _ops(graph, node))


def generator_inputs(graph: Graph, node: Node) -> frozenset[int]:
    """Positions of inputs that are generators' variables, in called functions too."""
    return inputs_reaching(graph, node, _own_generator, _passes_values, {})


def seed_inputs(graph: Graph, node: Node, memo: dict[str, frozenset[int]] | None = None) -> frozenset[int]:
    """Positions of inputs that hold seeds, in called functions too.

    Args:
        memo: results for functions, shared between calls.
    """
    return inputs_reaching(graph, node, _own_seeds, _passes_values, {} if memo is None else memo)


def _own_generator(node: Node) -> frozenset[int]:
    return frozenset({0}) if node.op.startswith(_GENERATOR_OPS) else frozenset()


def _own_seeds(node: Node) -> frozenset[int]:
    if not node.op.startswith(_STATELESS_OPS) or node.op in _TELLS_ALGORITHM:
        return frozenset()
    return _SEEDS_AT.get(node.op) or frozenset({1, 2} if node.op.endswith(_OF_KEY) else {1})


def _passes_values(node: Node) -> bool:
    return node.op not in SHAPES


def draws_statelessly(graph: Graph, node: Node) -> bool:
    """True if a node, or a function that it calls, draws from a given seed."""
    return any(op.startswith(_STATELESS_OPS) for op in _ops(graph, node))


def draws_at_random(graph: Graph) -> bool:
    """True if any node of a graph draws random numbers."""
    return any(draws(graph, node) or draws_statelessly(graph, node) for node in graph.nodes)


def draws_from_ops(graph: Graph) -> bool:
    """True if any node draws from an operation's own state, which ends with its session."""
    return any(_is_seeded_op(op) for node in graph.nodes for op in _ops(graph, node))


def _ops(graph: Graph, node: Node) -> Iterator[str]:
    yield node.op
    for name in reachable_functions((node,), graph.functions):
        for inner in graph.functions[name].nodes:
            yield inner.op


def mix(seed: int, rank: int, name: str) -> int:
    """Seed of a rank: unchanged for rank 0, else xor with a hash of rank and name, in [0, 2³¹)."""
    if rank == 0:
        return seed
    digest = hashlib.blake2b(f"{rank}/{name}".encode(), digest_size=8).digest()
    return (seed ^ int.from_bytes(digest, "little")) & _MASK


def reseed(graph: Graph, rank: int) -> Graph:
    """Mix the rank into seeds of stateful random ops, in functions too; ops without a seed stay.

    Returns:
        The graph with new seeds; the same object for rank 0 and for a graph without such ops.
    """
    if rank == 0:
        return graph
    renamed = {name: f"{name}__rank_{rank}" for name in functions_reaching(graph.functions, _is_seeded)}
    if not renamed and not any(_is_seeded(node) for node in graph.nodes):
        return graph

    def reseeded(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        return tuple(_reseeded(node, rank, renamed) for node in nodes)

    copies = copied_functions(graph.functions, renamed, reseeded)
    return replace(graph, nodes=reseeded(graph.nodes), functions={**graph.functions, **copies})


def _is_seeded_op(op: str) -> bool:
    # Gradients of pooling have the drawn values as inputs.
    return (op.startswith(_SEEDED_OPS) and not op.endswith("Grad")) or op.endswith(_SAMPLERS)


def _is_seeded(node: Node) -> bool:
    attrs = node.attrs
    return node.op not in _DRAWS_NOTHING and "seed2" in attrs and bool(attrs["seed2"] or attrs.get("seed"))


def _reseeded(node: Node, rank: int, renamed: Mapping[str, str]) -> Node:
    node = renamed_functions(node, renamed)
    if not _is_seeded(node):
        return node
    seed2 = node.attrs["seed2"]
    assert isinstance(seed2, int)
    return replace(node, attrs={**node.attrs, "seed2": mix(seed2, rank, node.name)})


def require_seeds_of_variables(graph: Graph) -> None:
    """Refuse ops with their own seeds, with which replicas of one program would draw the same numbers.

    Raises:
        UnsupportedError: the graph has such ops.
    """
    if reseed(graph, 1) is not graph:
        raise UnsupportedError(
            "train step: random numbers must use seeds that each replica can have for itself, got "
            "operations with seeds of their own; use keras.random with a SeedGenerator"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Random draws of a graph.

    Attributes:
        tensors: references that carry draws and can be fed.
        hidden: nodes that draw inside functions or loops, where nothing can be fed.
    """

    tensors: tuple[str, ...]
    hidden: tuple[str, ...]


def draws_of(graph: Graph, wanted: Iterable[str]) -> Draws:
    """Find the random draws that nodes need."""
    needed = ancestors(graph, wanted, control=False)
    drawing = [
        n for n in graph.nodes if n.name in needed and (draws(graph, n) or draws_statelessly(graph, n))
    ]
    if not drawing:
        return Draws(tensors=(), hidden=())
    exits = {n.name for n in graph.nodes if n.op in EXITS}
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
