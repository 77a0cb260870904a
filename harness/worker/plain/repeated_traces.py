"""Comparison of traces of one step, which Python code that counts, draws or chooses makes different."""

import re
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from harness.worker.plain.plain_step import PlainStep
from strategies.ir.functions import called_functions, renamed_functions
from strategies.ir.graph import Graph, Node

_NUMBERS = re.compile(r"\d+")
_SEEDS = frozenset(("seed", "seed2"))
_HANDLES = (tf.resource, tf.variant)


def are_alike(one: PlainStep, other: PlainStep) -> bool:
    """Return True if two traces are the same graph and read the same constants of their surroundings."""
    if list(_parts(one.graph)) != list(_parts(other.graph)):
        return False
    constants = zip(*(_constants(step) for step in (one, other)), strict=True)
    return all(np.array_equal(a, b) for a, b in constants)


def _parts(graph: Graph) -> Iterator[object]:
    """Operations in order, then those of each function.

    Left out is what differs between any two traces: numbers in names, which count the functions of a
    process, seeds that follow from them, and private attributes.
    """
    names: dict[str, str] = {}
    bodies = [graph.nodes]
    for nodes in bodies:
        for node in nodes:
            for name in _called(graph, node):
                if name not in names:
                    names[name] = f"function {len(names)}"
                    bodies.append(graph.functions[name].nodes)
            renamed = renamed_functions(node, names)
            attrs = {k: v for k, v in renamed.attrs.items() if not k.startswith("_") and k not in _SEEDS}
            yield renamed.op, [_NUMBERS.sub("", ref) for ref in node.inputs], attrs


def _called(graph: Graph, node: Node) -> list[str]:
    """Functions that a node calls, in an order that does not depend on the numbers in their names."""
    called = (called_functions(node.attrs) | {node.op}) & graph.functions.keys()
    return sorted(called, key=lambda name: (_NUMBERS.sub("", name), len(name), name))


def _constants(step: PlainStep) -> list[object]:
    """Values that a trace has taken from outside of it, but for variables and tables."""
    return [tensor.numpy() for tensor in step.concrete.captured_inputs if tensor.dtype not in _HANDLES]
