"""A step without what is seen outside, for all shards but the one that shows it."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from strategies.ir.graph import Function, Graph, Node
from strategies.ir.train_graph import TrainGraph
from strategies.ir.traversal import reachable_functions, renamed_functions

_MADE_FOR_SHOW = frozenset({"CreateSummaryFileWriter", "CreateSummaryDbWriter"})
_SHOWN = frozenset(
    {
        "PrintV2",
        "WriteSummary",
        "WriteScalarSummary",
        "WriteHistogramSummary",
        "WriteImageSummary",
        "WriteAudioSummary",
        "WriteRawProtoSummary",
        "WriteGraphSummary",
        "FlushSummaryWriter",
        "WriteFile",
    }
)


def quiet(step: TrainGraph) -> TrainGraph:
    """The step as a shard makes it that shows nothing; the same object when there is nothing to show."""
    graph, tables = silenced(step.graph), quiet_tables(step)
    if graph is step.graph and not step.effects and tables == step.tables:
        return step
    return replace(step, graph=graph, effects=(), tables=tables)


def quiet_tables(step: TrainGraph) -> tuple[str, ...]:
    """Initializers of what a step needs though it shows nothing."""
    return tuple(name for name in step.tables if step.graph.by_name[name].op not in _MADE_FOR_SHOW)


def silenced(graph: Graph) -> Graph:
    """The graph with functions that show nothing, which print and write summaries beside what they return.

    Effects that are nodes of the graph itself are left alone: nothing needs them, so that it is enough not to
    run them.

    Returns:
        The same object when no function shows anything.
    """
    renamed = {
        name: f"{name}__quiet"
        for name, function in graph.functions.items()
        if _shows(function, graph.functions)
    }
    if not renamed:
        return graph
    made = {new: _silenced(graph.functions[old], new, renamed) for old, new in renamed.items()}
    return replace(
        graph,
        nodes=tuple(renamed_functions(node, renamed) for node in graph.nodes),
        functions={**graph.functions, **made},
    )


def _shows(function: Function, functions: Mapping[str, Function]) -> bool:
    reached = [function, *(functions[name] for name in reachable_functions(function.nodes, functions))]
    return any(node.op in _SHOWN for each in reached for node in each.nodes)


def _silenced(function: Function, name: str, renamed: Mapping[str, str]) -> Function:
    gone = {node.name: node for node in function.nodes if node.op in _SHOWN}
    kept = [_waiting_past(node, gone) for node in function.nodes if node.name not in gone]
    results = {result: node for result, node in function.control_results.items() if node not in gone}
    return replace(
        function,
        name=name,
        nodes=tuple(renamed_functions(node, renamed) for node in kept),
        control_results=results,
        control_outputs=tuple(output for output in function.control_outputs if output in results),
    )


def _waiting_past(node: Node, gone: Mapping[str, Node]) -> Node:
    """A node that waits for what these others waited for, in their place."""
    if gone.keys().isdisjoint(node.control_inputs):
        return node
    waits = dict.fromkeys(f"^{name}" for name in _waits(node.control_inputs, gone))
    return replace(node, inputs=(*node.data_inputs, *waits))


def _waits(names: Collection[str], gone: Mapping[str, Node]) -> Iterator[str]:
    for name in names:
        if name in gone:
            yield from _waits(gone[name].control_inputs, gone)
        else:
            yield name
