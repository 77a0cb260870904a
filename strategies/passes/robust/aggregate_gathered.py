"""Robust aggregation without a server: every worker gathers all gradients and applies the rule itself."""

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
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Replica, Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class AggregateGathered:
    """Let the first replica of each worker gather all workers' gradients, and combine them by a rule.

    All workers compute bitwise equal results from equal inputs, so that their copies of variables stay equal.
    """

    name: ClassVar[str] = "aggregate-gathered"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        members = Members.of(topology, "workers")
        (leader,) = members.local(topology, self.plan.task)
        chosen = self.plan.synchronized_by("robust-gather")
        own = [b for b in graph.gradients() if b.rank == leader.rank and b.variable in chosen]
        added: list[Node] = []
        parts: list[Aggregated] = []
        for vector in by_level(self.plan, own):
            nodes, received = _gathered(vector, members, leader, self.plan.task)
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
    """Step with the combined gradients of all workers at its boundaries, and the state of the rule."""
    combined: dict[str, Contribution] = {}
    for part in parts:
        combined |= part.combined
        added = [*added, *part.nodes, *part.keeps]
    rewired = contribute(graph, combined, added)
    return replace(
        rewired,
        variables=(*rewired.variables, *(k.variable for part in parts for k in part.state)),
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
        gather_vectors,
        (whole,),
        group=members.group,
        key=keys[vector.name],
        size=vector.size,
        order=members.order,
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
            order=members.order,
        )
        added, gathered = snippet.splice(
            f"{prefix}{name}/", sent.tensors[1 + 2 * place : 3 + 2 * place], device=leader.device
        )
        nodes += added
        received += gathered
    return nodes, tuple(received)
