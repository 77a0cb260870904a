"""Rows of sparse gradients that one example makes, as far as shapes tell."""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from strategies.ir.assembly.traced import TracedGradient, TracedInput, TracedStep
from strategies.ir.graph import Graph, Node, Shape
from strategies.ir.traversal import prune
from strategies.tf_bridge.graphdef import graphdef_from_graph


def rows_per_example(step: TracedStep) -> dict[str, float]:
    """Variable → rows of its sparse gradients that one example makes; those that shapes tell only."""
    sparse = [mark for mark in step.marks if mark.indices is not None]
    sizes = {part.shape.dims[0] for part in step.batch if part.shape.dims}
    if not sparse or len(sizes) != 1:
        return {}
    n_examples = max(1, *sizes)  # -1 where the batch axis is free
    lengths = _lengths(step.graph, step.batch, sparse, n_examples)
    rows: dict[str, float] = {}
    unknown: set[str] = set()
    for mark in step.marks:
        length = lengths.get(mark.values)
        if length is None:
            unknown.add(mark.variable)
        else:
            rows[mark.variable] = rows.get(mark.variable, 0.0) + length / n_examples
    return {variable: n for variable, n in rows.items() if variable not in unknown}


def _lengths(
    graph: Graph, batch: Sequence[TracedInput], sparse: Sequence[TracedGradient], n_examples: int
) -> Mapping[str, int | None]:
    """Mark's values → number of its row ids in a batch of this size, by TensorFlow's inference of shapes."""
    indices = {mark.values: mark.indices for mark in sparse if mark.indices is not None}
    inputs = {part.node: part.shape for part in batch}

    def sized(node: Node) -> Node:
        dims = inputs[node.name].dims if node.name in inputs else None
        if not dims:
            return node
        return node.changed(attrs={**node.attrs, "shape": Shape((n_examples, *dims[1:]))})

    needed = prune(graph, indices.values())
    with tf.Graph().as_default() as inferred:
        try:
            tf.graph_util.import_graph_def(
                graphdef_from_graph(needed.with_nodes(map(sized, needed.nodes))), name=""
            )
        except ValueError:
            return {}  # shapes that a batch of this size contradicts
        shapes = {values: inferred.get_tensor_by_name(f"{node}:0").shape for values, node in indices.items()}
    return {values: shape[0] if shape.rank == 1 else None for values, shape in shapes.items()}
