"""A step without what is seen outside, for all shards but the one that shows it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from strategies.ir.functions import functions_reaching, renamed_functions
from strategies.ir.graph import Graph, Node, producer
from strategies.ir.train_graph import TrainGraph
from strategies.ir.traversal import COLOCATION_ATTR, ENTERS

_MADE_FOR_SHOW = frozenset({"CreateSummaryFileWriter", "CreateSummaryDbWriter"})
_HANDED_ON = "Print"  # of the first TensorFlow: its result is its first input
FILE_WRITERS = frozenset(
    {
        "WriteSummary",
        "WriteScalarSummary",
        "WriteHistogramSummary",
        "WriteImageSummary",
        "WriteAudioSummary",
        "WriteRawProtoSummary",
        "WriteGraphSummary",
        "WriteFile",
    }
)
"""Operations that write files or records of summaries."""
_SHOWN = FILE_WRITERS | {"PrintV2", "FlushSummaryWriter"}


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
    """The graph and its functions without what prints and writes summaries; all names remain.

    What is shown becomes a wait for what it waited for, and `Print` hands its tensor on.

    Returns:
        The same object when nothing is shown.
    """
    renamed = {name: f"{name}__quiet" for name in functions_reaching(graph.functions, _is_shown)}
    if not renamed and not any(map(_is_shown, graph.nodes)):
        return graph
    copies = {
        new: replace(graph.functions[old], name=new, nodes=_silenced(graph.functions[old].nodes, renamed))
        for old, new in renamed.items()
    }
    return replace(graph, nodes=_silenced(graph.nodes, renamed), functions={**graph.functions, **copies})


def _is_shown(node: Node) -> bool:
    return node.op in _SHOWN or node.op == _HANDED_ON


def _silenced(nodes: Sequence[Node], renamed: Mapping[str, str]) -> tuple[Node, ...]:
    # What waits in a loop's frame must be in that frame, which it may owe to its data alone. Elsewhere what
    # is shown need not even be computed.
    framed = any(node.op in ENTERS for node in nodes)
    return tuple(
        _unshown(node, framed=framed) if _is_shown(node) else renamed_functions(node, renamed)
        for node in nodes
    )


def _unshown(node: Node, *, framed: bool) -> Node:
    kept = {key: value for key, value in node.attrs.items() if key == COLOCATION_ATTR}
    waits = [f"^{name}" for name in node.control_inputs]
    if node.op == _HANDED_ON:
        op, inputs, attrs = "Identity", [node.inputs[0], *waits], {"T": node.attrs["T"], **kept}
    else:
        needed = [f"^{producer(ref)}" for ref in node.data_inputs] if framed else []
        op, inputs, attrs = "NoOp", list(dict.fromkeys([*waits, *needed])), kept
    return Node(name=node.name, op=op, inputs=tuple(inputs), attrs=attrs, device=node.device)
