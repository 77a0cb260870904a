"""Checks a strategy against the reference, in one process."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from harness.equivalence import Checked, Equivalence, judge
from harness.worker.artefact import InitialValues
from harness.worker.in_process import InProcessCluster, programs_of
from harness.worker.reference import PLAIN, VARIATIONS, ReferenceResult, run_reference
from strategies.ir.train_graph import TrainGraph
from strategies.passes.of_plan import topology_of
from strategies.plan import Plan
from strategies.topology import Topology

Array: TypeAlias = np.ndarray[Any, Any]
_EPS = {"double": 2.0**-52, "float": 2.0**-23, "half": 2.0**-10, "bfloat16": 2.0**-7}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A strategy's equivalence, and its losses beside the reference's."""

    equivalence: Equivalence
    losses: tuple[float, ...]
    reference_losses: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """The reference of a step on a topology, and those that differ from it by rounding."""

    plain: ReferenceResult
    others: tuple[ReferenceResult, ...]
    variables: tuple[Checked, ...]
    eps: float
    n_steps: int

    @classmethod
    def run(
        cls, step: TrainGraph, initial: InitialValues, topology: Topology, batches: Sequence[Sequence[Array]]
    ) -> "References":
        """Run all of them on the same global batches, a step each."""
        return cls(
            plain=run_reference(step, initial, topology, batches, PLAIN),
            others=tuple(
                run_reference(step, initial, topology, batches, rounding) for rounding in VARIATIONS
            ),
            variables=tuple(Checked(name=v.name, kind=v.kind, group=v.group) for v in step.variables),
            eps=max((_EPS[v.dtype] for v in step.variables if v.dtype in _EPS), default=_EPS["float"]),
            n_steps=len(batches),
        )

    def judge(self, actual: dict[tuple[str, int | None], Array]) -> Equivalence:
        """The verdict on all copies of all variables after the same steps."""
        return judge(
            self.variables,
            self.plain.initial,
            self.plain.values,
            [other.values for other in self.others],
            actual,
            n_steps=self.n_steps,
            eps=self.eps,
        )


def check(
    step: TrainGraph,
    initial: InitialValues,
    plan: Plan,
    batches: Sequence[Sequence[Array]],
    references: References | None = None,
) -> Verdict:
    """Run a plan with all its workers in this process and compare the outcome with the reference.

    Args:
        step: the captured step, rewritten in float64 or not; `initial` and `batches` in the same types.
        references: of the same step, topology and batches, if they were run before.
    """
    references = references or References.run(step, initial, topology_of(plan), batches)
    with InProcessCluster(programs_of(step, plan), initial) as cluster:
        losses = tuple(cluster.step(batch) for batch in batches)
        actual = dict(cluster.read())
    return Verdict(
        equivalence=references.judge(actual), losses=losses, reference_losses=references.plain.losses
    )
