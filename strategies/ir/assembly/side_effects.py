"""Effects of a step beside its updates."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from strategies.ir.functions import reachable_functions
from strategies.ir.graph import Graph, Node
from strategies.ir.replicas.seeds import is_random_op
from strategies.ir.resource_uses import READ_OPS
from strategies.ir.traversal import ancestors

_CHECK_OPS = frozenset({"Assert", "CheckNumerics", "CheckNumericsV2"})
_CALL_OPS = frozenset({"While", "If", "Case", "StatefulPartitionedCall", "For", "RemoteCall"})
# What loops of the first kind keep from round to round for their gradients, and for nobody else.
_KEPT_BY_LOOPS = ("Stack", "TensorArray")
_HARMLESS = READ_OPS | _CALL_OPS | {"Placeholder", "VarHandleOp", "HashTableV2", "SummaryWriter"}


@dataclass(frozen=True, slots=True)
class SideEffects:
    """Nodes that a step runs although no result needs them.

    Attributes:
        seen: printing, summaries: what is noticed outside, once in a step.
        state: assignments of forward state and checks, which every replica runs.
    """

    seen: tuple[str, ...]
    state: tuple[str, ...]


def side_effects(
    graph: Graph, must_run: Iterable[str], excluded: Collection[str], stateful_ops: Collection[str]
) -> SideEffects:
    """Sort the nodes that must run by who must run them.

    Args:
        excluded: nodes that are accounted for already.
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
    """Op types of a node, and of all functions that it reaches, of which anybody could tell that they ran."""
    # An assignment that became an addition is of a type that the trace need not have had.
    stateful = {op for op in _ops_within(graph, node) - _HARMLESS if op in stateful_ops or _keeps_state(op)}
    return {op for op in stateful if _is_noticed(op)}


def released_from(graph: Graph, effects: Iterable[str], keep: Iterable[str]) -> Graph:
    """Nothing but further effects waits for what is seen outside, so that a replica can leave it out.

    Args:
        keep: nodes that all replicas run; they and what they need are released.
    """
    gone = set(effects)
    if not gone:
        return graph
    needed = ancestors(graph, keep, stop=gone)
    return graph.with_nodes(_released(node, gone) if node.name in needed else node for node in graph.nodes)


def _released(node: Node, gone: Collection[str]) -> Node:
    if not any(c in gone for c in node.control_inputs):
        return node
    return replace(node, inputs=tuple(ref for ref in node.inputs if ref[0] != "^" or ref[1:] not in gone))


def _ops_within(graph: Graph, node: Node) -> set[str]:
    """The node's op, and those of all functions that it reaches."""
    reached = reachable_functions((node,), graph.functions)
    return {node.op} | {inner.op for name in reached for inner in graph.functions[name].nodes}


def _is_noticed(op: str) -> bool:
    """Whether anybody could tell that a stateful op has run."""
    return not (is_random_op(op) or op.startswith(_KEPT_BY_LOOPS))


def _keeps_state(op: str) -> bool:
    return op.startswith(("Assign", "Rng", "ResourceScatter")) or op in _CHECK_OPS
