"""Random state of a rank: rank 0 draws what the captured step draws, every other rank its own numbers."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace

from strategies.errors import UnsupportedError
from strategies.ir.functions import functions_reaching, reachable_functions, renamed_functions
from strategies.ir.graph import Graph, Node

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
_DRAWS_NOTHING = frozenset({"ComputeAccidentalHits"})  # it compares ids, and has the seeds of samplers
_STATELESS_OPS = (
    "StatelessRandom",
    "StatelessTruncatedNormal",
    "StatelessMultinomial",
    "StatelessParameterized",
)


def is_random_op(op: str) -> bool:
    """Whether an op draws numbers from a state, its own or a generator's."""
    return op.startswith(_GENERATOR_OPS) or _is_seeded_op(op)


def draws_from_op(node: Node) -> bool:
    """Whether a node draws numbers from a state of its own, not of a variable."""
    return _is_seeded_op(node.op)


def draws(graph: Graph, node: Node) -> bool:
    """Whether a node, or a function that it calls, draws numbers from a state."""
    return any(is_random_op(op) for op in _ops(graph, node))


def moves_generator(graph: Graph, node: Node) -> bool:
    """Whether a node, or a function that it calls, draws from a generator's variable."""
    return any(op.startswith(_GENERATOR_OPS) for op in _ops(graph, node))


def draws_statelessly(graph: Graph, node: Node) -> bool:
    """Whether a node, or a function that it calls, makes random numbers of a seed that it is given."""
    return any(op.startswith(_STATELESS_OPS) for op in _ops(graph, node))


def draws_at_random(graph: Graph) -> bool:
    """Whether anything of a graph makes random numbers."""
    return any(draws(graph, node) or draws_statelessly(graph, node) for node in graph.nodes)


def _ops(graph: Graph, node: Node) -> Iterator[str]:
    yield node.op
    for name in reachable_functions((node,), graph.functions):
        for inner in graph.functions[name].nodes:
            yield inner.op


def mix(seed: int, rank: int, name: str) -> int:
    """A seed for a rank: `seed` itself for rank 0, otherwise its exclusive or with a hash of rank and name.

    Returns:
        0 ≤ seed < 2³¹ for rank > 0, so that it fits every integer type that holds seeds.
    """
    if rank == 0:
        return seed
    digest = hashlib.blake2b(f"{rank}/{name}".encode(), digest_size=8).digest()
    return (seed ^ int.from_bytes(digest, "little")) & _MASK


def reseed(graph: Graph, rank: int) -> Graph:
    """The graph with a rank's seeds in its stateful random ops, those of its functions included.

    Ops without any seed differ on every run and are left alone.

    Returns:
        The same object for rank 0 and for a graph without such ops.
    """
    if rank == 0:
        return graph
    renamed = {name: f"{name}__rank_{rank}" for name in functions_reaching(graph.functions, _is_seeded)}
    if not renamed and not any(_is_seeded(node) for node in graph.nodes):
        return graph
    functions = dict(graph.functions)
    for old, new in renamed.items():
        body = tuple(_reseeded(node, rank, renamed) for node in graph.functions[old].nodes)
        functions[new] = replace(graph.functions[old], name=new, nodes=body)
    return replace(graph, nodes=tuple(_reseeded(n, rank, renamed) for n in graph.nodes), functions=functions)


def _is_seeded_op(op: str) -> bool:
    # Gradients of pooling take what was drawn as inputs.
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
    """Refuse operations with seeds of their own, by which replicas of one program would draw alike.

    Raises:
        UnsupportedError: there are any.
    """
    if reseed(graph, 1) is not graph:
        raise UnsupportedError(
            "train step: random numbers must come of seeds that each replica can have for itself, got "
            "operations with seeds of their own; use keras.random with a SeedGenerator"
        )
