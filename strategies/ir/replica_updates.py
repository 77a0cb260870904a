"""Nodes before, in and after updates, for variables that replicas own or share."""

from collections.abc import Collection, Mapping, Sequence

from strategies.errors import StrategyError
from strategies.ir.graph import Node, producer
from strategies.ir.resource_uses import Uses, resource_uses
from strategies.ir.train_graph import TrainGraph
from strategies.ir.traversal import ancestors, descendants, topological_order
from strategies.ir.variable import Variable


def late_nodes(step: TrainGraph, variables: Collection[Variable]) -> set[str]:
    """Nodes at or after a boundary or write of these variables, without later forward passes."""
    after = after_updates(step, variables)
    return after - forward_backward_nodes(step) if step.n_levels > 1 and not step.update_values else after


def after_updates(step: TrainGraph, variables: Collection[Variable]) -> set[str]:
    """Nodes at or after a boundary or write of these variables, with later forward passes."""
    loads = {v.load for v in step.variables}
    names = {v.name for v in variables}
    uses = resource_uses(step.graph)
    late = {w for v in variables for w in uses[v.handle].writes if w not in loads}
    late |= {
        n for b in step.boundaries if b.variable in names for n in (b.values, b.indices) if n is not None
    }
    return descendants(step.graph, late, stop={value.node for value in step.update_values})


def forward_backward_nodes(step: TrainGraph) -> set[str]:
    """Nodes of forward and backward passes, of every level."""
    by_name = step.graph.by_name
    crossing = [n for b in step.boundaries for n in (b.values, b.indices) if n is not None]
    roots = [*(producer(by_name[n].inputs[0]) for n in crossing), *step.returned()]
    stop = {v.handle for v in step.variables}.union(crossing, step.update_nodes())
    stop |= {b.node for b in step.batch}
    return ancestors(step.graph, roots, stop=stop)


def replica_targets(step: TrainGraph, shared: Collection[Variable] | None = None) -> tuple[str, ...]:
    """State targets that each replica runs for itself: its random state and its checks.

    Args:
        shared: variables that replicas share; by default all but per-replica state.
    """
    if shared is None:
        shared = [v for v in step.variables if v.rule != "per-replica"]
    late = late_nodes(step, shared)
    return tuple(target for target in step.state_targets if target not in late)


_READERS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"})


def prior_reads(step: TrainGraph, variables: Collection[Variable]) -> dict[str, tuple[str, ...]]:
    """Handle → its readers, for variables that are read only before their updates.

    Variables whose handle goes to other nodes, such as a loop that writes it, are left out.
    """
    run = ancestors(step.graph, [*step.targets(), *step.returned()])
    outside = run - step.update_nodes() - {name for v in step.variables for name in v.access}
    written = _written_before(step, variables)
    readers = {}
    for bit, v in enumerate(variables):
        users = [u for u in step.graph.consumers.get(v.handle, ()) if u.name in outside]
        if all(_takes_value(u, v.handle) and not written[u.name] >> bit & 1 for u in users):
            readers[v.handle] = tuple(dict.fromkeys(u.name for u in users))
    return readers


def _takes_value(node: Node, handle: str) -> bool:
    return node.op in _READERS and [k for k, ref in enumerate(node.data_inputs) if ref == handle] == [0]


def _written_before(step: TrainGraph, variables: Collection[Variable]) -> dict[str, int]:
    uses = resource_uses(step.graph)
    loads = {v.load for v in step.variables}
    written: dict[str, int] = {}
    for bit, v in enumerate(variables):
        for write in uses[v.handle].writes:
            if write not in loads:
                written[write] = written.get(write, 0) | 1 << bit
    for node in topological_order(step.graph.nodes):
        bits = written.get(node.name, 0)
        for ref in node.inputs:
            bits |= written.get(producer(ref), 0)
        written[node.name] = bits
    return written


def own_updates(step: TrainGraph, shared: Collection[str]) -> set[str]:
    """Nodes that every replica runs to update its own variables, including their inputs.

    Values computed only from shared variables and gradients (a norm) exist once; values that also depend on a
    replica's own variables are computed by every replica.

    Args:
        shared: names of variables, and their slots, with one copy for all replicas.
    Raises:
        StrategyError: one node updates both shared and own variables.
    """
    uses = resource_uses(step.graph)
    one_copy = [v for v in step.variables if v.name in shared]
    own = [v for v in step.variables if v.name not in shared]
    _check_updates(step, shared, uses)
    update = step.update_nodes()
    names = {v.name for v in own}
    roots = [n for v in own for n in v.access]
    roots += _boundary_nodes(step, own)
    roots += replica_targets(step, one_copy)
    roots += [target for region in step.regions if region.variable in names for target in region.targets]
    roots += [read for v in own for read in uses[v.handle].reads if read in update]
    apart = {v.handle for v in one_copy} | {b.node for b in step.batch}
    return ancestors(step.graph, roots, stop=apart | _made_once(step, one_copy, own, uses))


def _boundary_nodes(step: TrainGraph, variables: Sequence[Variable]) -> list[str]:
    names = {v.name for v in variables}
    crossing = (n for b in step.boundaries if b.variable in names for n in (b.values, b.indices))
    return [n for n in crossing if n is not None]


def _made_once(
    step: TrainGraph, shared: Sequence[Variable], own: Sequence[Variable], uses: Mapping[str, Uses]
) -> set[str]:
    update = step.update_nodes()
    after = update | late_nodes(step, shared)
    loads = {v.load for v in shared}
    touching = {n for v in shared for n in uses[v.handle].reads if n in after}
    touching |= {n for v in shared for n in uses[v.handle].writes if n not in loads}
    touching.update(_boundary_nodes(step, shared))
    others = {n for v in own for n in (*uses[v.handle].reads, *uses[v.handle].writes) if n in update}
    others.update(_boundary_nodes(step, own))
    of_shared = descendants(step.graph, touching, control=False)
    return touching | (of_shared - descendants(step.graph, others, control=False))


def _check_updates(step: TrainGraph, shared: Collection[str], uses: Mapping[str, Uses]) -> None:
    update = step.update_nodes()
    writes = {n for v in step.variables for n in uses[v.handle].writes if n in update}
    variable_of: dict[str, Variable] = {}
    for v in step.variables:
        for name in (*uses[v.handle].reads, *uses[v.handle].writes):
            if name not in writes:
                continue
            other = variable_of.setdefault(name, v)
            if (v.name in shared) != (other.name in shared):
                op = step.graph.by_name[name].op
                raise StrategyError(
                    f"variables {other.name!r} and {v.name!r}: {op} {name!r} updates them together, so both "
                    "must be on servers or neither, got one of each; use ps or all-reduce for all"
                )
