"""Updates that every replica makes for itself, where it owns some variables and shares others."""

from collections.abc import Collection, Mapping, Sequence

from strategies.errors import StrategyError
from strategies.ir.replicas.after_update import late_nodes, replica_targets
from strategies.ir.resource_uses import Uses, resource_uses
from strategies.ir.train_graph import TrainGraph
from strategies.ir.traversal import ancestors, descendants
from strategies.ir.variable import Variable


def own_updates(step: TrainGraph, shared: Collection[str]) -> set[str]:
    """The nodes with which every replica updates its own variables, and all that these need.

    What the update computes of shared variables and their gradients alone (the norm of such a gradient)
    exists once, and replicas' own updates read the result; what it computes of both kinds each replica
    computes for itself, from the same values.

    Args:
        shared: names of the variables of which there is one copy for all replicas, with those of their slots.
    Raises:
        StrategyError: when one node updates variables of both kinds.
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
    """What depends on shared variables and their gradients alone, and all that writes such variables."""
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
    """No node can be both one for all replicas and one for each."""
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
