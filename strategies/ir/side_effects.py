"""Side effects of a step, and the step without those that are visible."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from strategies.ir.graph import Graph, Node, producer
from strategies.ir.ops import ENTERS, READ_OPS, op_set
from strategies.ir.random_ops import is_random_op
from strategies.ir.train_graph import TrainGraph
from strategies.ir.traversal import (
    COLOCATION_ATTR,
    ancestors,
    copied_functions,
    functions_reaching,
    reachable_functions,
    renamed_functions,
)

_CHECK_OPS = frozenset({"Assert", "CheckNumerics", "CheckNumericsV2"})
_CALL_OPS = frozenset({"While", "If", "Case", "StatefulPartitionedCall", "For", "RemoteCall"})
# State that TensorFlow 1 loops keep only for their gradients.
_KEPT_BY_LOOPS = ("Stack", "TensorArray")
_HARMLESS = READ_OPS | _CALL_OPS | {"Placeholder", "VarHandleOp", "HashTableV2", "SummaryWriter"}


@dataclass(frozen=True, slots=True)
class SideEffects:
    """Nodes that a step runs although no result needs them.

    Attributes:
        seen: printing and summaries, which run once per step.
        state: assignments of forward state, and checks, which every replica runs.
    """

    seen: tuple[str, ...]
    state: tuple[str, ...]


def side_effects(
    graph: Graph, must_run: Iterable[str], excluded: Collection[str], stateful_ops: Collection[str]
) -> SideEffects:
    """Sort nodes that must run into visible effects and state.

    Args:
        excluded: nodes that are handled elsewhere.
    """
    seen: list[str] = []
    state: list[str] = []
    for name in must_run:
        node = graph.by_name.get(name)
        if node is None or name in excluded:
            continue
        acting = acting_ops(graph, node, stateful_ops)
        if any(not _keeps_state(op) for op in acting):
            seen.append(name)
        elif acting or node.op.startswith("Rng"):
            state.append(name)
    return SideEffects(seen=tuple(seen), state=tuple(state))


def acting_ops(graph: Graph, node: Node, stateful_ops: Collection[str]) -> set[str]:
    """Op types with a noticeable effect, of a node and the functions that it reaches."""
    # An assignment that became an addition is of a type that the trace need not have had.
    reached = reachable_functions((node,), graph.functions)
    ops = {node.op} | {inner.op for name in reached for inner in graph.functions[name].nodes}
    stateful = {op for op in ops - _HARMLESS if op in stateful_ops or _keeps_state(op)}
    return {op for op in stateful if not is_random_op(op) and not op.startswith(_KEPT_BY_LOOPS)}


def release_from_effects(graph: Graph, effects: Iterable[str], keep: Iterable[str]) -> Graph:
    """Remove waits for visible effects, so that a replica can omit the effects.

    Args:
        keep: nodes that all replicas run.
    """
    removed = set(effects)
    if not removed:
        return graph
    needed = ancestors(graph, keep, stop=removed)
    return graph.with_nodes(
        node.without_waits(removed) if node.name in needed else node for node in graph.nodes
    )


def _keeps_state(op: str) -> bool:
    return op.startswith(("Assign", "Rng", "ResourceScatter")) or op in _CHECK_OPS


_MADE_FOR_SHOW = frozenset({"CreateSummaryFileWriter", "CreateSummaryDbWriter"})
_HANDED_ON = "Print"  # TensorFlow 1's op: its result is its first input
FILE_WRITERS = op_set("""
    WriteAudioSummary WriteFile WriteGraphSummary WriteHistogramSummary WriteImageSummary
    WriteRawProtoSummary WriteScalarSummary WriteSummary
""")
"""Operations that write files or records of summaries."""
_SHOWN = FILE_WRITERS | {"PrintV2", "FlushSummaryWriter"}


def without_visible_effects(step: TrainGraph) -> TrainGraph:
    """The step without visible effects; the same object if it has none."""
    graph, tables = without_visible_ops(step.graph), quiet_tables(step)
    if graph is step.graph and not step.effects and tables == step.tables:
        return step
    return replace(step, graph=graph, effects=(), tables=tables)


def quiet_tables(step: TrainGraph) -> tuple[str, ...]:
    """Initializers that a step without visible effects needs."""
    return tuple(name for name in step.tables if step.graph.by_name[name].op not in _MADE_FOR_SHOW)


def without_visible_ops(graph: Graph) -> Graph:
    """Replace ops that print or write summaries by waits; all names remain.

    Returns:
        The same object if there are none.
    """
    renamed = {name: f"{name}__quiet" for name in functions_reaching(graph.functions, _is_shown)}
    if not renamed and not any(map(_is_shown, graph.nodes)):
        return graph
    copies = copied_functions(graph.functions, renamed, lambda nodes: _silenced(nodes, renamed))
    return replace(graph, nodes=_silenced(graph.nodes, renamed), functions={**graph.functions, **copies})


def _is_shown(node: Node) -> bool:
    return node.op in _SHOWN or node.op == _HANDED_ON


def _silenced(nodes: Sequence[Node], renamed: Mapping[str, str]) -> tuple[Node, ...]:
    # A node that waits in a loop's frame must be in that frame, possibly only because of its data inputs.
    # Elsewhere the printed value need not even be computed.
    framed = any(node.op in ENTERS for node in nodes)
    return tuple(
        _unshown(node, framed=framed) if _is_shown(node) else renamed_functions(node, renamed)
        for node in nodes
    )


def _unshown(node: Node, *, framed: bool) -> Node:
    colocation = {key: value for key, value in node.attrs.items() if key == COLOCATION_ATTR}
    waits = list(node.waits)
    if node.op == _HANDED_ON:
        op, inputs, attrs = "Identity", [node.inputs[0], *waits], {"T": node.attrs["T"], **colocation}
    else:
        needed = [f"^{producer(ref)}" for ref in node.data_inputs] if framed else []
        op, inputs, attrs = "NoOp", list(dict.fromkeys([*waits, *needed])), colocation
    return Node(name=node.name, op=op, inputs=tuple(inputs), attrs=attrs, device=node.device)
