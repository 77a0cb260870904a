"""A plan from the view of one task's passes, with values that several passes derive from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from strategies.ir.graph import DType
from strategies.ir.variable import Cut
from strategies.plan.aggregation import Aggregation
from strategies.plan.compressors import BY_NAME, is_encoded, is_rounded_on_wire
from strategies.plan.execution import Execution
from strategies.plan.faults import Fault
from strategies.plan.partitions import OwnedParts, cuts_of, joined_for, joins_parts, parts_of, shards_of
from strategies.plan.schema import BETWEEN_WORKERS, Compression, Plan, PlanNode, Synchronizer

Between: TypeAlias = Literal["replicas", "workers"]
"""Members of an exchange: all replicas, or the first replica of each worker, its leader."""
Carrier: TypeAlias = Literal["servers", "collectives", "own transport"]
"""Carrier of encoded gradients."""


@dataclass(frozen=True, kw_only=True)
class TaskPlan:
    """Values that passes derive from a plan for one task; without slots, because they are cached."""

    plan: Plan
    task: int

    @property
    def n_tasks(self) -> int:
        return len(self.plan.replicas_per_task)

    @cached_property
    def execution(self) -> Execution:
        return self.plan.execution

    @cached_property
    def aggregation(self) -> Aggregation | None:
        """Rule that combines workers' gradients; None if they are summed."""
        return self.plan.aggregation

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Faults of all workers."""
        return self.plan.faults

    @cached_property
    def own_faults(self) -> tuple[Fault, ...]:
        """Faults that this task injects into its step, in the order in which they act on a gradient."""
        places = ("gradient", "batch")
        return tuple(f for f in self.faults if f.worker == self.task and f.place in places)

    @cached_property
    def layers(self) -> frozenset[str]:
        """Layers that normalise by statistics of the whole batch."""
        return frozenset(statistic.layer for statistic in self.plan.statistics)

    @cached_property
    def ranks(self) -> range:
        """Ranks of this task's replicas."""
        first = sum(self.plan.replicas_per_task[: self.task])
        return range(first, first + self.plan.replicas_per_task[self.task])

    @cached_property
    def _joined_nodes(self) -> tuple[PlanNode, ...]:
        """Nodes of the plan, with neighbouring parts as one if replicas of other tasks update them."""
        if not joins_parts(self.plan.nodes):
            return self.plan.nodes
        return tuple(joined_for(node, self.ranks) for node in self.plan.nodes)

    @cached_property
    def cuts(self) -> Mapping[str, Cut]:
        """Cut trainable or slot → its cut; slots are cut like their trainable."""
        return cuts_of(self._joined_nodes)

    @cached_property
    def merged_rows(self) -> frozenset[str]:
        """Uncut variables whose rows of equal ids are summed."""
        return frozenset(node.variable for node in self.plan.nodes if node.merges_rows)

    @cached_property
    def nodes(self) -> tuple[PlanNode, ...]:
        """Nodes of the plan, with a cut variable replaced by its parts."""
        return tuple(part for node in self._joined_nodes for part in parts_of(node))

    @cached_property
    def shards(self) -> tuple[OwnedParts, ...]:
        """Variables that single replicas update for all, with all owners."""
        pairs = (
            zip(self.plan.nodes, self._joined_nodes, strict=True)
            if joins_parts(self.plan.nodes)
            else ((part, part) for part in self.nodes)
        )
        owned = (shards_of(*pair) for pair in pairs if pair[0].synchronizer == "all-reduce")
        return tuple(shards for shards in owned if shards is not None)

    @cached_property
    def synchronizers(self) -> frozenset[str]:
        return frozenset(node.synchronizer for node in self.nodes)

    def synchronized_by(self, synchronizer: Synchronizer) -> frozenset[str]:
        """Variables with this synchronizer."""
        return frozenset(n.variable for n in self.nodes if n.synchronizer == synchronizer)

    @property
    def is_synchronized(self) -> bool:
        return self.synchronizers != {"none"}

    @property
    def on_cores(self) -> bool:
        return "cross-replica-sum" in self.synchronizers

    @cached_property
    def in_parts(self) -> frozenset[str]:
        """Variables that may be partitioned during a host loop."""
        return frozenset(n.variable for n in self.nodes if n.in_parts)

    @cached_property
    def destinations(self) -> Mapping[str, int]:
        """Shared variable → task that serves it."""
        return {n.variable: n.destination for n in self.nodes if n.destination is not None}

    @cached_property
    def proxies(self) -> frozenset[str]:
        """Variables on other tasks that this task's replicas read from one copy on their host."""
        return frozenset(n.variable for n in self.nodes if n.proxy and n.destination != self.task)

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

    @property
    def weighs_own_examples(self) -> bool:
        """True if a task contributes the mean of its own examples, not its share of the global batch's."""
        by_rule = self.aggregation is not None and self.n_tasks > 1
        return by_rule or (self.is_served and not self.execution.sync)

    @cached_property
    def buckets(self) -> tuple[tuple[str, ...], ...]:
        """Buckets of variables that are sent together; periodic ones are apart from those of every step."""
        groups: dict[tuple[int, str], list[str]] = {}
        for node in self.nodes:
            if node.group is not None:
                groups.setdefault((node.group, node.synchronizer), []).append(node.variable)
        return tuple(tuple(groups[key]) for key in sorted(groups))

    @cached_property
    def in_no_bucket(self) -> tuple[str, ...]:
        """Variables whose gradient rows TensorFlow gathers; a dense gradient among these is sent alone."""
        reduced = ("all-reduce", "hierarchical-all-reduce")
        return tuple(n.variable for n in self.nodes if n.group is None and n.synchronizer in reduced)

    @cached_property
    def hints(self) -> Mapping[str, str]:
        """Variable → TensorFlow's implementation of its collective, if the plan requests one."""
        return {n.variable: n.transport for n in self.nodes if n.transport in ("ring", "nccl")}

    @cached_property
    def on_own_transport(self) -> frozenset[str]:
        """Variables whose values are sent by the workers' own transport."""
        return frozenset(n.variable for n in self.nodes if n.transport == "tcp")

    @cached_property
    def summed_on_own_transport(self) -> frozenset[str]:
        """Variables whose contributions are summed by the workers' own transport itself."""
        return self.on_own_transport.difference(self.compressions("own transport"))

    @cached_property
    def weighed_on_own_transport(self) -> frozenset[str]:
        """Variables whose weight may be applied to the complete sum by the workers' own transport.

        A compressor's residual has the weight of its gradient in the sum.
        """
        with_residual = (
            name for name, compression in self.rounded_on_wire.items() if BY_NAME[compression.name].feedback
        )
        return (
            self.summed_on_own_transport.difference(with_residual) if self.needs_collectives else frozenset()
        )

    @cached_property
    def owners(self) -> Mapping[str, int]:
        """Variable that each replica has → rank of the single replica that updates it."""
        return {
            n.variable: n.owner for n in self.nodes if n.owner is not None and n.synchronizer == "all-reduce"
        }

    @cached_property
    def whole_gradients(self) -> frozenset[str]:
        """Variables with an owner whose summed gradient every replica gets."""
        return frozenset(n.variable for n in self.nodes if n.variable in self.owners and n.whole_gradient)

    @cached_property
    def gathered(self) -> frozenset[str]:
        return frozenset(n.variable for n in self.nodes if n.variable in self.owners and n.gathered)

    @cached_property
    def scattered_by_collectives(self) -> Mapping[str, int]:
        """Variable → rank of the only replica to get its summed gradient, by TensorFlow's collectives."""
        return {name: owner for name, owner in self._scattered.items() if name not in self.on_own_transport}

    @cached_property
    def scattered_by_own_transport(self) -> Mapping[str, int]:
        """Variable → rank of the only replica to get its summed gradient, by the workers' ring."""
        return {
            name: owner for name, owner in self._scattered.items() if name in self.summed_on_own_transport
        }

    @property
    def _scattered(self) -> Mapping[str, int]:
        return {name: owner for name, owner in self.owners.items() if name not in self.whole_gradients}

    def compressions(self, by: Carrier) -> Mapping[str, Compression]:
        """Variable → compressor of its gradient, for gradients that are sent encoded."""
        return {
            n.variable: n.compressor
            for n in self.nodes
            if n.compressor is not None and is_encoded(n) and _carrier(n) == by
        }

    @cached_property
    def rounded_on_wire(self) -> Mapping[str, Compression]:
        """Variable → compressor of its gradient, if the workers' own transport rounds and sums it."""
        return {
            n.variable: n.compressor for n in self.nodes if n.compressor is not None and is_rounded_on_wire(n)
        }

    @cached_property
    def wire_types(self) -> Mapping[str, DType]:
        """Variable → type to which the workers' own transport rounds its gradient."""
        return {name: DType(BY_NAME[c.name].codec) for name, c in self.rounded_on_wire.items()}


def _carrier(node: PlanNode) -> Carrier:
    if node.destination is not None:
        return "servers"
    return "own transport" if node.transport == "tcp" else "collectives"
