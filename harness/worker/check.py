"""Checks a strategy against the reference, in one process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.equivalence import Array, Checked, Verdict, Yardstick
from harness.reference import Reference
from harness.step_results import Returned
from harness.worker.artefact import InitialValues
from harness.worker.in_process import InProcessCluster, programs_of
from harness.worker.inherited import left_out
from harness.worker.reference import run_references
from harness.worker.rounding import PLAIN, VARIATIONS
from strategies.ir.train_graph import TrainGraph
from strategies.plan import Plan
from strategies.planning import topology_of
from strategies.topology import Topology

_EPS: Mapping[str, float] = {"double": 2.0**-52, "float": 2.0**-23, "half": 2.0**-10, "bfloat16": 2.0**-7}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """A strategy's verdict, its losses beside the reference's, and what was left out of a checkpoint.

    Attributes:
        results: what the last step returned beside its loss, the reference's too.
    """

    verdict: Verdict
    losses: tuple[float, ...]
    reference_losses: tuple[float, ...]
    results: tuple[Returned, ...] = ()
    reference_results: tuple[Returned, ...] = ()
    notes: tuple[str, ...] = ()


def make_reference(
    step: TrainGraph, initial: InitialValues, topology: Topology, batches: Sequence[Sequence[Array]]
) -> Reference:
    """Run the reference, and those that differ from it in rounding, a step for each global batch."""
    plain, *others = run_references(step, initial, topology, batches, [PLAIN, *VARIATIONS])
    yardstick = Yardstick.of(
        [Checked(name=v.name, kind=v.kind, group=v.group) for v in step.variables],
        plain.initial,
        plain.values,
        [other.values for other in others],
        n_steps=len(batches),
        eps=max((_EPS[v.dtype] for v in step.variables if v.dtype in _EPS), default=_EPS["float"]),
    )
    return Reference(yardstick=yardstick, losses=plain.losses, results=plain.results)


def check(
    step: TrainGraph,
    initial: InitialValues,
    plan: Plan,
    batches: Sequence[Sequence[Array]],
    reference: Reference | None = None,
) -> Checkup:
    """Run a plan with all its workers in this process and compare the outcome with the reference.

    Args:
        step: the captured step, rewritten in float64 or not; `initial` and `batches` in the same types.
        batches: may be of other sizes than the plan's, where the step takes any number of examples.
        reference: of the same step, topology and batches, if it was made before.
    """
    reference = reference or make_reference(step, initial, topology_of(plan), batches)
    programs = programs_of(step, plan)
    with InProcessCluster(programs, initial, with_results=True) as cluster:
        for size in sorted({len(batch[0]) for batch in batches} - {plan.batch_size}):
            cluster.take_up(programs_of(step, plan.model_copy(update={"batch_size": size})))
        losses = tuple(cluster.step(batch) for batch in batches)
        results = cluster.results()
        actual = cluster.read()
    return Checkup(
        verdict=reference.yardstick.judge(actual),
        losses=losses,
        reference_losses=reference.losses,
        results=results,
        reference_results=reference.results,
        notes=left_out(programs[0].variables, initial, {v.name for v in step.variables}),
    )
