"""Reduce to one leader per worker before the collective, then broadcast its result."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.ir.train_graph import Boundary, Contribution, TrainGraph
from strategies.passes.replicate.rewire import captured_name, contribute
from strategies.passes.task_plan import TaskPlan
from strategies.topology import Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaderReduce:
    """Sum the contributions of a task's replicas into its first replica's, the leader's.

    Tasks always send a single contribution for variables on servers.
    """

    name: ClassVar[str] = "leader-reduce"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        replicas = topology.local_replicas(self.plan.task)
        if len(replicas) == 1:
            return graph
        summands: dict[str, tuple[Contribution, ...]] = {}
        for b in (b for b in graph.boundaries if b.rank is not None):
            summands[captured_name(b)] = (*summands.get(captured_name(b), ()), *b.contributions)
        leader = replicas[0].rank
        return replace(
            graph,
            boundaries=tuple(
                b
                if b.rank is None
                else replace(b, contributions=summands[captured_name(b)] if b.rank == leader else ())
                for b in graph.boundaries
            ),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaderBroadcast:
    """Copy the leader's boundary values to the task's other replicas."""

    name: ClassVar[str] = "leader-broadcast"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:  # noqa: ARG002 - the form of every pass
        totals = {
            captured_name(b): replace(b.contributions[0], total=True)
            for b in graph.boundaries
            if b.contributions and b.rank is not None
        }
        return contribute(graph, _others(graph, totals), ())


def _others(graph: TrainGraph, totals: Mapping[str, Contribution]) -> dict[str, Contribution]:
    """Boundary → its total, for boundaries that do not have it yet."""

    def lacks(b: Boundary) -> bool:
        return b.contributions != (totals[captured_name(b)],)

    return {b.values: totals[captured_name(b)] for b in graph.boundaries if b.rank is not None and lacks(b)}
