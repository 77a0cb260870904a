"""In-graph synchronisation: what the replicas of one task contribute becomes one weighted contribution."""

from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.ir.graph import Node
from strategies.ir.train_graph import Boundary, Contribution, TrainGraph
from strategies.numerics.combine import concat_rows, weighted_sum
from strategies.passes.replicate.rewire import contribute
from strategies.passes.task_plan import TaskPlan
from strategies.plan.compressors import BY_NAME
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Topology

_MULTIPLIED = ("float", "double")
"""Types whose sums are multiplied; smaller ones could overflow before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CombineLocal:
    """Scale contributions by their weights and add up those that cross one boundary.

    Where replicas share their variables this is a sum on the host of the task; where each owns its copy there
    is one contribution to a boundary, which is scaled in place, or those of the whole task to the boundary of
    its leader, where they are added up. Sparse gradients are concatenated.

    Attributes:
        weighed_later: variables whose sums over all workers get the weight, if all contributions have the
            same: the transport multiplies what is in a cache then, and here each gradient would pass once
            more through memory.
    """

    name: ClassVar[str] = "combine-local"
    task: int
    weighed_later: frozenset[str] = frozenset()

    @classmethod
    def of(cls, plan: TaskPlan) -> "CombineLocal | None":
        """Where replicas exchange anything."""
        if not plan.is_synchronized:
            return None
        # What a compressor still owes counts in the sum, weight and all.
        owing = (name for name, each in plan.rounded_on_wire.items() if BY_NAME[each.name].feedback)
        later = plan.summed_on_own_transport.difference(owing)
        return cls(task=plan.task, weighed_later=later if plan.needs_collectives else frozenset())

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        """The step whose boundaries each have one contribution, of weight 1 or weighed later, or none."""
        combined: dict[str, Contribution] = {}
        added: list[Node] = []
        devices = {replica.rank: replica.device for replica in topology.local_replicas(self.task)}
        host = topology.host_device(self.task)
        all_alike = len({replica.examples for replica in topology.replicas()}) == 1
        for boundary in graph.boundaries:
            parts = boundary.contributions
            later = self._weight_for_later(boundary) if all_alike else 1.0
            if len(parts) <= 1 and all(c.weight == later for c in parts):
                continue
            device = host if boundary.rank is None else devices[boundary.rank]
            weights = tuple(c.weight / later for c in parts)
            nodes, one = _combine(boundary, weights, device)
            combined[boundary.values] = replace(one, weight=later)
            added += nodes
        return contribute(graph, combined, added) if combined else graph

    def _weight_for_later(self, boundary: Boundary) -> float:
        """Of contributions that come to a boundary from replicas of equal shares."""
        is_mean = boundary.rule == "mean" and boundary.indices is None and boundary.dtype in _MULTIPLIED
        if not is_mean or boundary.variable not in self.weighed_later or not boundary.contributions:
            return 1.0
        return boundary.contributions[0].weight


def _combine(
    boundary: Boundary, weights: tuple[float, ...], device: str
) -> tuple[tuple[Node, ...], Contribution]:
    parts = boundary.contributions
    prefix = f"combine/{boundary.values}/"
    value_specs = (TensorSpec(dtype=boundary.dtype),) * len(parts)
    if boundary.indices is None:
        snippet = trace(weighted_sum, value_specs, weights=weights)
        nodes, (values,) = snippet.splice(prefix, [c.values for c in parts], device=device)
        return nodes, Contribution(rank=parts[0].rank, values=values, indices=None, weight=1.0)
    assert boundary.index_dtype is not None
    id_specs = (TensorSpec(dtype=boundary.index_dtype),) * len(parts)
    ids = [c.indices for c in parts if c.indices is not None]
    snippet = trace(concat_rows, (*value_specs, *id_specs), weights=weights)
    nodes, (values, indices) = snippet.splice(prefix, [*(c.values for c in parts), *ids], device=device)
    return nodes, Contribution(rank=parts[0].rank, values=values, indices=indices, weight=1.0)
