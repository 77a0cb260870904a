"""What of a step comes after its updates: no replica may bring it about or wait for it before them."""

from collections.abc import Collection

from strategies.ir.effects import resource_uses
from strategies.ir.train_graph import TrainGraph, Variable
from strategies.ir.traversal import descendants


def late_nodes(step: TrainGraph, variables: Collection[Variable]) -> set[str]:
    """What crosses a boundary of these variables or writes one, and what waits for that or reads of it."""
    loads = {v.load for v in step.variables}
    names = {v.name for v in variables}
    uses = resource_uses(step.graph)
    late = {w for v in variables for w in uses[v.handle].writes if w not in loads}
    late |= {
        n for b in step.boundaries if b.variable in names for n in (b.values, b.indices) if n is not None
    }
    return descendants(step.graph, late)


def replica_targets(step: TrainGraph, shared: Collection[Variable] | None = None) -> tuple[str, ...]:
    """The state targets of a captured step that each replica runs for itself: its random state, its checks.

    The others are merged state and checks of what was updated, which come once.

    Args:
        shared: the variables that replicas share; unless given, all but those that each has for itself.
    """
    if shared is None:
        shared = [v for v in step.variables if v.rule != "per-replica"]
    late = late_nodes(step, shared)
    return tuple(target for target in step.state_targets if target not in late)
