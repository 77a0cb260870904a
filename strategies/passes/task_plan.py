"""A plan as the passes of one task see it: what they ask of it is derived here once."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from strategies.ir.variable import Cut
from strategies.plan.aggregation import Aggregation
from strategies.plan.compressors import is_encoded, is_rounded_on_wire
from strategies.plan.execution import Execution
from strategies.plan.faults import Fault
from strategies.plan.partitions import cuts_of, parts_of
from strategies.plan.schema import BETWEEN_WORKERS, Compression, Plan, PlanNode

Between: TypeAlias = Literal["replicas", "workers"]
"""Members of an exchange: all replicas, or the first replica of each worker, its leader."""
Carrier: TypeAlias = Literal["servers", "collectives", "own transport"]
"""Carrier of encoded gradients."""


@dataclass(frozen=True, kw_only=True)
class TaskPlan:
    """Demands of a plan on one task's graph; without slots, because derived values are kept.

    Attributes:
        cuts: trainable or slot → its ranges, of variables that are cut.
        nodes: of the plan, with the parts of a variable in its place: all later passes see them as variables.
        n_tasks: workers.
        aggregation: the rule by which workers' gradients are combined, None where they are added up.
        faults: of all workers.
        layers: those that normalise by statistics of the whole batch.
        merged_rows: variables, uncut, whose rows of equal ids are summed.
    """

    task: int
    cuts: Mapping[str, Cut]
    nodes: tuple[PlanNode, ...]
    execution: Execution
    n_tasks: int
    layers: frozenset[str]
    merged_rows: frozenset[str] = frozenset()
    aggregation: Aggregation | None = None
    faults: tuple[Fault, ...] = ()

    @classmethod
    def of(cls, plan: Plan, task: int) -> "TaskPlan":
        """A plan as it is for this task."""
        return cls(
            task=task,
            cuts=cuts_of(plan.nodes),
            nodes=tuple(part for node in plan.nodes for part in parts_of(node)),
            execution=plan.execution,
            n_tasks=len(plan.replicas_per_task),
            layers=frozenset(each.layer for each in plan.statistics),
            merged_rows=frozenset(node.variable for node in plan.nodes if node.merges_rows),
            aggregation=plan.aggregation,
            faults=plan.faults,
        )

    @cached_property
    def synchronizers(self) -> frozenset[str]:
        return frozenset(node.synchronizer for node in self.nodes)

    @property
    def is_synchronized(self) -> bool:
        return self.synchronizers != {"none"}

    @property
    def on_cores(self) -> bool:
        return "cross-replica-sum" in self.synchronizers

    @cached_property
    def in_parts(self) -> frozenset[str]:
        """Variables that may lie in parts while a host loop runs."""
        return frozenset(n.variable for n in self.nodes if n.in_parts)

    @cached_property
    def destinations(self) -> Mapping[str, int]:
        """Variable → task that serves it, of those that replicas share."""
        return {n.variable: n.destination for n in self.nodes if n.destination is not None}

    @property
    def is_served(self) -> bool:
        return self.is_synchronized and bool(self.destinations)

    @property
    def between(self) -> Between:
        return "replicas" if self.synchronizers.isdisjoint(BETWEEN_WORKERS) else "workers"

    @property
    def is_reduced(self) -> bool:
        return not self.synchronizers.isdisjoint(("all-reduce", "average", *BETWEEN_WORKERS))

    @property
    def needs_collectives(self) -> bool:
        return self.is_reduced and (self.between == "replicas" or self.n_tasks > 1)

    @cached_property
    def buckets(self) -> tuple[tuple[str, ...], ...]:
        """Variables that travel together; those that travel now and then, apart from those of every step."""
        groups: dict[tuple[int, str], list[str]] = {}
        for node in self.nodes:
            if node.group is not None:
                groups.setdefault((node.group, node.synchronizer), []).append(node.variable)
        return tuple(tuple(groups[key]) for key in sorted(groups))

    @cached_property
    def in_no_bucket(self) -> tuple[str, ...]:
        """Variables whose rows of gradients TensorFlow gathers; a dense one among these travels alone."""
        reduced = ("all-reduce", "hierarchical-all-reduce")
        return tuple(n.variable for n in self.nodes if n.group is None and n.synchronizer in reduced)

    @cached_property
    def hints(self) -> Mapping[str, str]:
        """Variable → TensorFlow's implementation of its collective, where one is asked for."""
        return {n.variable: n.transport for n in self.nodes if n.transport in ("ring", "nccl")}

    @cached_property
    def on_own_transport(self) -> frozenset[str]:
        """Variables of which values travel by the workers' own transport."""
        return frozenset(n.variable for n in self.nodes if n.transport == "tcp")

    @cached_property
    def summed_on_own_transport(self) -> frozenset[str]:
        """Variables whose contributions the workers' own transport itself adds up."""
        return self.on_own_transport.difference(self.compressions("own transport"))

    @cached_property
    def owners(self) -> Mapping[str, int]:
        """Variable → rank of the replica that alone updates it, of those that each replica has."""
        return {
            n.variable: n.owner for n in self.nodes if n.owner is not None and n.synchronizer == "all-reduce"
        }

    @cached_property
    def whole_gradients(self) -> frozenset[str]:
        """Variables with an owner whose gradient every replica gets the sum of."""
        return frozenset(n.variable for n in self.nodes if n.variable in self.owners and n.whole_gradient)

    @cached_property
    def gathered(self) -> frozenset[str]:
        return frozenset(n.variable for n in self.nodes if n.variable in self.owners and n.gathered)

    @cached_property
    def scattered_owners(self) -> Mapping[str, int]:
        """Variable → rank of the replica that alone gets the sum of its gradient."""
        return {name: owner for name, owner in self.owners.items() if name not in self.whole_gradients}

    def compressions(self, by: Carrier) -> Mapping[str, Compression]:
        """Variable → compressor of its gradient, of those whose encodings travel so."""
        return {
            n.variable: n.compressor
            for n in self.nodes
            if n.compressor is not None and is_encoded(n) and _carrier(n) == by
        }

    @cached_property
    def rounded_on_wire(self) -> Mapping[str, Compression]:
        """Variable → compressor of its gradient, of those that the workers' own transport rounds and sums."""
        return {
            n.variable: n.compressor for n in self.nodes if n.compressor is not None and is_rounded_on_wire(n)
        }


def _carrier(node: PlanNode) -> Carrier:
    if node.destination is not None:
        return "servers"
    return "own transport" if node.transport == "tcp" else "collectives"
