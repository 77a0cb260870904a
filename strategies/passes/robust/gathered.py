"""A rule over the gradients of all workers, which each worker gathers and combines for itself, as all do."""

from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.ir.graph import Node, Shape
from strategies.ir.train_graph import Contribution, TrainGraph
from strategies.numerics.collectives import gather_rows, gather_vectors
from strategies.passes.collectives.buckets import row_shape
from strategies.passes.collectives.members import Members, compressed_keys, key_ranges, length_keys
from strategies.passes.replicate.rewire import contribute, sync_prefix
from strategies.passes.robust.gradient_vector import INT64, Aggregated, GradientVector, by_level
from strategies.passes.task_plan import TaskPlan
from strategies.plan.aggregation import Aggregation
from strategies.plan.faults import Fault
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Replica, Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class AggregateGathered:
    """Have the first replica of each worker gather the gradients of all workers, and combine them by a rule.

    All get the same of the same, to a digit: their copies of variables stay equal.

    Attributes:
        variables: names of those whose gradients are combined so.
        faults: of all workers.
    """

    name: ClassVar[str] = "aggregate-gathered"
    task: int
    aggregation: Aggregation
    variables: frozenset[str]
    faults: tuple[Fault, ...] = ()

    @classmethod
    def of(cls, plan: TaskPlan) -> "AggregateGathered | None":
        chosen = frozenset(n.variable for n in plan.nodes if n.synchronizer == "robust-gather")
        if plan.aggregation is None or not chosen or plan.n_tasks == 1:
            return None
        return cls(task=plan.task, aggregation=plan.aggregation, variables=chosen, faults=plan.faults)

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        members = Members.of(topology, "workers")
        (leader,) = members.local(topology, self.task)
        own = [
            b
            for b in graph.boundaries
            if b.role == "gradient" and b.rank == leader.rank and b.variable in self.variables
        ]
        added: list[Node] = []
        parts: list[Aggregated] = []
        for vector in by_level(self.aggregation, own, self.faults):
            nodes, received = _gathered(vector, members, leader, self.task)
            added += nodes
            parts.append(
                vector.aggregated(
                    received,
                    topology,
                    rank=leader.rank,
                    owners=members.ranks,
                    device=leader.device,
                    gathered=True,
                )
            )
        return with_aggregated(graph, parts, added)


def with_aggregated(graph: TrainGraph, parts: list[Aggregated], added: list[Node]) -> TrainGraph:
    """The step with what comes of all workers' gradients in its boundaries, and what is kept of it."""
    combined: dict[str, Contribution] = {}
    for part in parts:
        combined |= part.combined
        added = [*added, *part.nodes, *part.keeps]
    rewired = contribute(graph, combined, added)
    return replace(
        rewired,
        variables=(*rewired.variables, *(k.variable for part in parts for k in part.kept)),
        state_targets=(*rewired.state_targets, *(node.name for part in parts for node in part.keeps)),
        aggregation_counts=tuple(part.counts for part in parts),
    )


def _gathered(
    vector: GradientVector, members: Members, leader: Replica, task: int
) -> tuple[list[Node], tuple[str, ...]]:
    sent = vector.sent(task, leader.device)
    prefix = f"{vector.name}/gather/replica_{leader.rank}/"
    keys = compressed_keys([vector.name])
    whole = TensorSpec(dtype=vector.dtype, shape=Shape((vector.size,)))
    nodes: list[Node] = list(sent.nodes)
    received: list[str] = []
    added, (vectors,) = trace(
        gather_vectors, (whole,), group=members.group, key=keys[vector.name], size=vector.size
    ).splice(prefix, sent.tensors[:1], device=leader.device)
    nodes += added
    received.append(vectors)
    names = [f"{vector.name}/{sync_prefix(b)}" for b in vector.sparse]
    lengths = length_keys(names)
    ranges = key_ranges(f"{name}/{part}" for name in names for part in ("rows", "ids"))
    for place, (b, name) in enumerate(zip(vector.sparse, names, strict=True)):
        rows = (
            TensorSpec(dtype=vector.dtype, shape=row_shape(b)),
            TensorSpec(dtype=INT64, shape=Shape((-1,))),
        )
        snippet = trace(
            gather_rows,
            rows,
            group=members.group,
            length_key=lengths[name],
            row_keys=ranges[f"{name}/rows"],
            id_keys=ranges[f"{name}/ids"],
        )
        added, gathered = snippet.splice(
            f"{prefix}{name}/", sent.tensors[1 + 2 * place : 3 + 2 * place], device=leader.device
        )
        nodes += added
        received += gathered
    return nodes, tuple(received)
