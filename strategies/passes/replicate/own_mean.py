"""What a task brings as the mean of its own examples, in place of its share of the global batch's."""

from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.ir.train_graph import Boundary, TrainGraph
from strategies.passes.task_plan import TaskPlan
from strategies.topology import Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnMean:
    """Weigh contributions by their share of the task's own examples, in place of the global batch.

    Attributes:
        roles: of the boundaries whose contributions are weighed so.
        sums: those that add up count as well: they become what all workers would add up to.
    """

    name: ClassVar[str] = "own-mean"
    task: int
    roles: frozenset[str] = frozenset(("gradient", "state", "variable"))
    sums: bool = False

    @classmethod
    def of(cls, plan: TaskPlan) -> "OwnMean | None":
        """Where servers wait for nobody, and where a rule compares what workers bring."""
        if plan.aggregation is not None and plan.n_tasks > 1:
            return cls(task=plan.task, roles=frozenset(("gradient",)), sums=True)
        return cls(task=plan.task) if plan.is_served and not plan.execution.sync else None

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        """The step whose contributions add up to the mean over this task's examples."""
        if topology.n_tasks == 1:
            return graph
        own = sum(replica.examples for replica in topology.local_replicas(self.task))
        factor = topology.batch_size / own
        return replace(graph, boundaries=tuple(self._scaled(b, factor) for b in graph.boundaries))

    def _scaled(self, boundary: Boundary, factor: float) -> Boundary:
        weighed = boundary.rule == "mean" or (self.sums and boundary.rule == "sum")
        if boundary.role not in self.roles or not weighed:
            return boundary
        parts = tuple(replace(c, weight=c.weight * factor) for c in boundary.contributions)
        return replace(boundary, contributions=parts)
