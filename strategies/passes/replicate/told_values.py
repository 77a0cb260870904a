"""Reads of variables that take values from elsewhere."""

from collections.abc import Iterator, Mapping, Sequence

from strategies.ir.graph import Node
from strategies.ir.train_graph import TrainGraph
from strategies.ir.variable import Variable
from strategies.passes.replicate.value_arguments import ValueArguments, graph_ref


def with_values(
    graph: TrainGraph,
    taken: Sequence[Variable],
    prior: Mapping[str, Sequence[str]],
    values: Mapping[tuple[str, int | None], str],
    replaced: Mapping[str, Node],
) -> Iterator[Node]:
    """The nodes of a step, whose reads of these copies take values that others keep.

    Args:
        prior: handle → nodes that read a copy.
        replaced: name → the node in its place.
    """
    variable_of = {name: v for v in taken for name in prior[v.handle]}
    arguments = ValueArguments(graph.graph)
    for node in graph.graph.nodes:
        read = variable_of.get(node.name)
        if node.name in replaced:
            yield replaced[node.name]
        elif read is None:
            yield node
        else:
            inputs = (values[read.name, read.rank], *node.inputs[1:])
            value = {0: (read.dtype, read.shape)}
            yield from arguments.with_values(node.changed(inputs=inputs), value, graph_ref)
