"""Rows of sparse gradients per example, from the static shapes of a traced step."""

from collections.abc import Mapping, Sequence

from strategies.ir.assembly.traced import TracedStep
from strategies.ir.graph import Graph, Node, Shape
from strategies.ir.train_graph import BatchInput
from strategies.ir.traversal import prune
from strategies.tf_bridge.snippet import static_specs


def rows_per_example(step: TracedStep) -> dict[str, float]:
    """Variable → rows of its sparse gradient per example, where static shapes say so."""
    indices = {mark.indices for mark in step.marks if mark.indices is not None}
    sizes = {part.shape.dims[0] for part in step.batch if part.shape.dims}
    if not indices or len(sizes) != 1:
        return {}
    n_examples = max(1, *sizes)  # -1 where the batch axis is free
    shapes = _shapes(prune(_with_batch_size(step.graph, step.batch, n_examples), indices))
    rows: dict[str, float] = {}
    unknown: set[str] = set()
    for mark in step.marks:
        dims = None if mark.indices is None else shapes.get(mark.indices)
        if dims is None or len(dims) != 1 or dims[0] < 0:
            unknown.add(mark.variable)
        else:
            rows[mark.variable] = rows.get(mark.variable, 0.0) + dims[0] / n_examples
    return {variable: n for variable, n in rows.items() if variable not in unknown}


def _with_batch_size(graph: Graph, batch: Sequence[BatchInput], n_examples: int) -> Graph:
    inputs = {part.node: part.shape.dims for part in batch}

    def sized(node: Node) -> Node:
        dims = inputs.get(node.name)
        if not dims:
            return node
        return node.changed(attrs={**node.attrs, "shape": Shape((n_examples, *dims[1:]))})

    return graph.with_nodes(map(sized, graph.nodes))


def _shapes(graph: Graph) -> Mapping[str, tuple[int, ...] | None]:
    try:
        return {ref: spec.shape.dims for ref, spec in static_specs(graph).items()}
    except ValueError:
        return {}  # a batch of this size contradicts a shape
