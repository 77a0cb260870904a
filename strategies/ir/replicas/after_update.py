"""Nodes that run after a step's updates: no replica may bring them about or wait for them before."""

from collections.abc import Collection

from strategies.ir.graph import producer
from strategies.ir.resource_uses import resource_uses
from strategies.ir.train_graph import TrainGraph
from strategies.ir.traversal import ancestors, descendants
from strategies.ir.variable import Variable


def late_nodes(step: TrainGraph, variables: Collection[Variable]) -> set[str]:
    """What crosses a boundary of these variables or writes one, and what waits for that or reads of it.

    A later forward pass of the same step is none of it: what it takes of an update is handed to replicas.
    """
    after = after_updates(step, variables)
    return after - passing(step) if step.n_levels > 1 and not step.handed else after


def after_updates(step: TrainGraph, variables: Collection[Variable]) -> set[str]:
    """The same with later forward passes, unless replicas are handed what these take."""
    loads = {v.load for v in step.variables}
    names = {v.name for v in variables}
    uses = resource_uses(step.graph)
    late = {w for v in variables for w in uses[v.handle].writes if w not in loads}
    late |= {
        n for b in step.boundaries if b.variable in names for n in (b.values, b.indices) if n is not None
    }
    return descendants(step.graph, late, stop={handed.node for handed in step.handed})


def passing(step: TrainGraph) -> set[str]:
    """Forward and backward, of every level: what gradients, new forward state, losses and results need."""
    by_name = step.graph.by_name
    crossing = [n for b in step.boundaries for n in (b.values, b.indices) if n is not None]
    roots = [*(producer(by_name[n].inputs[0]) for n in crossing), *step.returned()]
    stop = {v.handle for v in step.variables}.union(crossing, step.update_nodes())
    stop |= {b.node for b in step.batch}
    return ancestors(step.graph, roots, stop=stop)


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
