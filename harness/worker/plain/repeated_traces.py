"""Comparison of traces of one step, which Python code that counts, draws or chooses makes different."""

from collections.abc import Iterator, Mapping, Sequence

import tensorflow as tf

from harness.worker.plain.plain_step import PlainStep
from strategies.ir.graph import Graph, Node, producer
from strategies.ir.traversal import called_functions, renamed_functions

_SEEDS = frozenset(("seed", "seed2"))


def are_alike(one: PlainStep, other: PlainStep) -> bool:
    """Return True if two traces are the same graph, of the same variables and surrounding constants."""
    return list(_parts(one.graph)) == list(_parts(other.graph)) and list(_captured(one)) == list(
        _captured(other)
    )


def _parts(graph: Graph) -> Iterator[object]:
    """Operations in order, then those of each function and its results.

    Leaves out names, whose numbers and scopes differ between traces, seeds that follow from places in a
    trace, and private attributes.
    """
    names: dict[str, str] = {}
    bodies: list[tuple[Sequence[str], Sequence[Node], Mapping[str, str]]] = [((), graph.nodes, {})]
    for arguments, nodes, results in bodies:
        places = {name: k for k, name in enumerate([*arguments, *(node.name for node in nodes)])}
        for node in nodes:
            for name in _called(graph, node, names):
                function = graph.functions[name]
                names[name] = f"function {len(names)}"
                bodies.append(([arg.name for arg in function.inputs], function.nodes, function.results))
            renamed = renamed_functions(node, names)
            attrs = {k: v for k, v in renamed.attrs.items() if not k.startswith("_") and k not in _SEEDS}
            yield renamed.op, [_placed(ref, places) for ref in node.inputs], attrs
        yield [_placed(ref, places) for ref in results.values()]


def _placed(ref: str, places: Mapping[str, int]) -> tuple[int, str]:
    """Place of the node or argument that a reference names, and the rest of the reference."""
    name = producer(ref)
    return places[name], ref.replace(name, "", 1)


def _called(graph: Graph, node: Node, known: Mapping[str, str]) -> list[str]:
    """Functions that a node calls for the first time, the older ones first."""
    called = (called_functions(node.attrs) | {node.op}) & graph.functions.keys() - known.keys()
    # The number at the end of a name counts the functions of a process.
    return sorted(called, key=lambda name: (name.rstrip("0123456789"), len(name), name))


def _captured(step: PlainStep) -> Iterator[object]:
    """Variables by identity, and values of other tensors that a trace has taken from outside of it."""
    variables = {id(variable.handle) for variable in step.concrete.graph.variables}
    for tensor in step.concrete.captured_inputs:
        if id(tensor) in variables:
            yield id(tensor)
        elif tensor.dtype == tf.string:
            yield tensor.numpy().tolist()
        elif tensor.dtype not in (tf.resource, tf.variant):
            yield tensor.dtype, tensor.shape, tensor.numpy().tobytes()
