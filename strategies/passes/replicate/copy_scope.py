"""Scope of each node of a captured step: a shard's, a replica's, or one for all replicas of a task."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from strategies.ir.graph import producer
from strategies.ir.replica_updates import own_updates, replica_targets
from strategies.ir.resource_uses import resource_uses
from strategies.ir.train_graph import TrainGraph
from strategies.ir.traversal import ancestors


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """Nodes of which each shard has a copy, and those of which each replica has one; others exist once.

    Where a replica takes its shard at once there is nothing that a shard has and its replica has not.
    """

    per_shard: AbstractSet[str]
    per_replica: AbstractSet[str]

    @classmethod
    def of(cls, step: TrainGraph, *, shared: AbstractSet[str], micro_batches: int) -> "Owners":
        """The owners in a step.

        Args:
            shared: names of the variables of which there is one copy for all replicas; each owns and updates
                the others.
            micro_batches: shards of each replica.
        Raises:
            StrategyError: when one node updates variables of both kinds.
        """
        everything = set(step.graph.by_name) - {b.node for b in step.batch}
        if not shared and micro_batches == 1:
            return cls(per_shard=frozenset(), per_replica=everything)
        passing = _forward_and_backward(step)
        copied = passing | own_updates(step, shared) if shared else everything
        if micro_batches == 1:
            return cls(per_shard=frozenset(), per_replica=copied)
        passing -= _same_for_all_shards(step, passing)
        return cls(per_shard=passing, per_replica=copied - passing)

    def copied(self) -> set[str]:
        """The nodes that do not exist once."""
        return {*self.per_shard, *self.per_replica}


def _forward_and_backward(step: TrainGraph) -> set[str]:
    """Forward, backward, and the variables and tables that each replica has for itself."""
    by_name = step.graph.by_name
    crossing = [n for b in step.boundaries for n in (b.values, b.indices) if n is not None]
    roots = [producer(by_name[n].inputs[0]) for n in crossing]
    roots += step.returned()
    roots += replica_targets(step)
    roots += step.tables
    roots += [n for v in step.variables if v.rule == "per-replica" for n in v.access]
    # A later forward pass needs updates, which are made elsewhere.
    return ancestors(step.graph, roots, stop=_not_entered(step).union(crossing, step.update_nodes()))


def _same_for_all_shards(step: TrainGraph, passing: AbstractSet[str]) -> set[str]:
    """Of forward and backward: tables, what nobody writes, and each variable's read before its writes.

    One read for all micro-batches: a parameter server sends a variable to a replica once in a step.
    """
    uses = resource_uses(step.graph)
    constant = [
        v
        for v in step.variables
        if v.rule == "per-replica" and v.seed_word is None and set(uses[v.handle].writes) <= {v.load}
    ]
    roots = [*step.tables, *(n for v in constant for n in v.access)]
    same = ancestors(step.graph, roots, stop=_not_entered(step))
    handles = {v.handle for v in step.variables if v.rule != "per-replica"}
    of_shards = passing - same
    same |= {
        node.name
        for node in step.graph.nodes
        if node.name in of_shards
        and node.op == "ReadVariableOp"
        and node.inputs[0] in handles
        and of_shards.isdisjoint(map(producer, node.inputs))
    }
    return same


def _not_entered(step: TrainGraph) -> set[str]:
    return {v.handle for v in step.variables if v.rule != "per-replica"} | {b.node for b in step.batch}
