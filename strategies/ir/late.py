"""What of a step comes after its updates: no replica may bring it about or wait for it before them."""

from collections.abc import Iterable

from strategies.ir.effects import resource_uses
from strategies.ir.train_graph import TrainGraph, Variable
from strategies.ir.traversal import descendants


def late_nodes(step: TrainGraph, variables: Iterable[Variable]) -> set[str]:
    """What crosses a boundary or writes one of these variables, and what waits for that or reads of it."""
    loads = {v.load for v in step.variables}
    uses = resource_uses(step.graph)
    late = {w for v in variables for w in uses[v.handle].writes if w not in loads}
    late |= {name for b in step.boundaries for name in (b.values, b.indices) if name is not None}
    return descendants(step.graph, late)


def replica_targets(step: TrainGraph) -> tuple[str, ...]:
    """The state targets of a captured step that each replica runs for itself: its random state, its checks.

    The others are merged state and checks of what was updated, which come once.
    """
    late = late_nodes(step, [v for v in step.variables if v.rule != "per-replica"])
    return tuple(target for target in step.state_targets if target not in late)
