"""Variables cut into parts along an axis, with their slots, gradients and updates; reads join the parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from strategies.errors import StrategyError
from strategies.ir.partitioning.propagate import cut_together, spread
from strategies.ir.train_graph import TrainGraph
from strategies.ir.variable import Cut, Variable, part_name
from strategies.passes.partition.graph import partitioned
from strategies.passes.task_plan import TaskPlan
from strategies.topology import Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionVariables:
    """Cut variables into parts; every part is a variable with slots, gradient and update of its own.

    Outside of the update the parts of a variable are read together, and looked up in by id. What the update
    computes elementwise or row by row is copied for each part; sums over the whole become sums over parts;
    what updates share is not copied.

    Attributes:
        cuts: trainable or slot → its ranges; slots of a trainable's shape are cut as it is.
    """

    name: ClassVar[str] = "partition"
    cuts: Mapping[str, Cut]

    @classmethod
    def of(cls, plan: TaskPlan) -> "PartitionVariables | None":
        """Where variables are cut."""
        return cls(cuts=plan.cuts) if plan.cuts else None

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:  # noqa: ARG002 - the form of every pass
        """The step with a variable for each part.

        Raises:
            StrategyError: when a variable is unknown, its ranges do not fill it, or its update needs all
                of it.
        """
        if not self.cuts:
            return graph
        trainables = self._checked(graph)
        propagated = spread(graph, {name: self.cuts[name].axis for name in trainables})
        for name in trainables:
            if name in propagated.refused:
                raise StrategyError(
                    f"variable {name!r}: a partitioned variable must be updated elementwise or row by row, "
                    f"got {propagated.refused[name]}; keep it whole (`partition: null` in the plan)"
                )
        return partitioned(graph, self.cuts, propagated)

    def _checked(self, graph: TrainGraph) -> list[str]:
        """The trainables that are cut."""
        by_name = {v.name: v for v in graph.variables}
        for name in self.cuts:
            if name not in by_name:
                raise StrategyError(
                    f"partition: names variables of the step, got {name!r}; take names from the plan"
                )
            self._check_variable(by_name[name])
            for k in range(self.cuts[name].n):
                if part_name(name, k) in by_name:
                    raise StrategyError(
                        f"variable {name!r}: its parts need names of their own, got a variable "
                        f"{part_name(name, k)!r}; rename that one"
                    )
        trainables = [name for name in self.cuts if by_name[name].slot_of is None]
        self._check_slots(cut_together(graph, trainables))
        return trainables

    def _check_slots(self, together: Mapping[str, Sequence[Variable]]) -> None:
        for name, family in together.items():
            for slot in family:
                if self.cuts.get(slot.name) != self.cuts[name]:
                    raise StrategyError(
                        f"slot {slot.name!r}: is cut like {name!r}, {self.cuts[name]}, got "
                        f"{self.cuts.get(slot.name)}; give it the same partition"
                    )
        alone = sorted(set(self.cuts) - {v.name for family in together.values() for v in family})
        if alone:
            raise StrategyError(
                f"slot {alone[0]!r}: a slot is cut with its variable, got none of its shape that is; "
                "keep it whole"
            )

    def _check_variable(self, variable: Variable) -> None:
        if variable.slot_of is None and variable.kind != "trainable":
            raise StrategyError(
                f"variable {variable.name!r}: only trainables and their slots are cut, got kind "
                f"{variable.kind!r}; keep it whole (`partition: null` in the plan)"
            )
        self._check_sizes(variable)

    def _check_sizes(self, variable: Variable) -> None:
        cut, dims = self.cuts[variable.name], variable.shape.dims
        if dims is None or not 0 <= cut.axis < len(dims):
            raise StrategyError(
                f"variable {variable.name!r}: a partition needs an axis that it has, got axis {cut.axis} of "
                f"shape {dims}; keep it whole"
            )
        if min(cut.sizes, default=0) < 1 or cut.n < 2 or sum(cut.sizes) != dims[cut.axis]:
            raise StrategyError(
                f"variable {variable.name!r}: needs two parts or more of at least one row that fill axis "
                f"{cut.axis} of shape {dims}, got sizes {cut.sizes}; use fewer shards or keep it whole"
            )
