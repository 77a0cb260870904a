"""In-graph synchronisation: what the replicas of one task contribute becomes one weighted contribution."""

from dataclasses import dataclass
from typing import ClassVar

from strategies.ir.boundary import Boundary, Contribution
from strategies.ir.graph import Node
from strategies.ir.train_graph import TrainGraph
from strategies.numerics.combine import concat_rows, weighted_sum
from strategies.passes.replicate.rewire import contribute
from strategies.passes.task_plan import TaskPlan
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class CombineLocal:
    """Scale contributions by their weights and add up those that cross one boundary.

    Where replicas share their variables this is a sum on the host of the task; where each owns its copy there
    is one contribution to a boundary, which is scaled in place, or those of the whole task to the boundary of
    its leader, where they are added up. Sparse gradients are concatenated.
    """

    name: ClassVar[str] = "combine-local"
    task: int

    @classmethod
    def of(cls, plan: TaskPlan) -> "CombineLocal | None":
        """Where replicas exchange anything."""
        return cls(task=plan.task) if plan.is_synchronized else None

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        """The step whose boundaries each have one contribution of weight 1, or none."""
        combined: dict[str, Contribution] = {}
        added: list[Node] = []
        devices = {replica.rank: replica.device for replica in topology.local_replicas(self.task)}
        host = topology.host_device(self.task)
        for boundary in graph.boundaries:
            if len(boundary.contributions) <= 1 and all(c.weight == 1.0 for c in boundary.contributions):
                continue
            device = host if boundary.rank is None else devices[boundary.rank]
            nodes, combined[boundary.values] = _combine(boundary, device)
            added += nodes
        return contribute(graph, combined, added) if combined else graph


def _combine(boundary: Boundary, device: str) -> tuple[tuple[Node, ...], Contribution]:
    parts = boundary.contributions
    weights = tuple(c.weight for c in parts)
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
