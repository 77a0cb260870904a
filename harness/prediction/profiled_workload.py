"""Steps of workloads as they were profiled in a run, for any number of examples per worker."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.experiment.chosen_strategy import Chosen
from harness.experiment.model import AS_USUAL, Computation
from harness.experiment.references import WorkloadRef, without_batch
from harness.prediction.profile import StepProfile
from harness.prediction.step_model import PlannedStep, slowest
from harness.records.conditions import BatchRule
from harness.written_values import Scalar
from strategies.plan.execution import Execution
from strategies.plan.schema import StepSummary
from strategies.planner import exchanges, topology_of
from strategies.topology import Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class Updates:
    """Updates of variables in a step, as far as strategies choose them.

    Attributes:
        fused: True with TensorFlow's fused kernels.
        merges_rows: True if sparse rows with equal ids are summed first.
    """

    fused: bool = True
    merges_rows: bool = False


USUAL_UPDATES = Updates()


def updates_of(chosen: Chosen) -> Updates:
    """Updates of a strategy's steps."""
    execution = Execution.of(chosen.params)
    return Updates(fused=execution.fused_update, merges_rows=execution.merges_rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfiledStep:
    """Measured step without exchanges, of workers with as many examples each.

    Attributes:
        profile: profile, scaled to steps that are not traced.
        idle_s: time in which workers wait for each other in a step.
        spread_s: standard deviation of a step's duration.
        n_workers: workers that were measured.
    """

    profile: StepProfile
    idle_s: float = 0.0
    spread_s: float = 0.0
    n_workers: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfiledWorkload:
    """A step as profiled in a run: of one workload, computed and updated in one way.

    Attributes:
        params: parameters of the workload, except the batch size.
        computation: precision and compiler.
        batch_rule: rule by which batch sizes were requested.
        batch_size: largest requested batch. usual_batch_size: that of the workload itself; None if the
            experiment names all batch sizes.
        measured: examples of a worker → step.
    """

    name: str
    params: Mapping[str, Scalar]
    computation: Computation = AS_USUAL
    updates: Updates = USUAL_UPDATES
    step: StepSummary
    batch_rule: BatchRule = "global"
    batch_size: int
    usual_batch_size: int | None = None
    measured: Mapping[int, ProfiledStep]

    @property
    def title(self) -> str:
        workload = WorkloadRef(reference=self.name, params=self.params)
        return " ".join(filter(None, (str(workload), str(self.computation))))

    def is_of(self, workload: WorkloadRef) -> bool:
        """True if it is the step of a workload, whatever its batch size."""
        return self.name == workload.reference and self.params == without_batch(workload.params)

    def profile(self, examples: int) -> StepProfile:
        """Profile for a number of examples, on a line through the two nearest ones that were measured.

        With one measured profile, computation and rows are proportional to examples, and updates do not
        change.
        """
        if examples in self.measured:
            return self.measured[examples].profile
        profiles = {n: step.profile for n, step in self.measured.items()}
        nearest = profiles[_nearest(profiles, examples)]
        compute_s = _on_line({n: profile.compute_s for n, profile in profiles.items()}, examples)
        factor = compute_s / nearest.compute_s
        variables = {
            name: replace(times.scaled(factor), update_s=times.update_s)
            for name, times in nearest.variables.items()
        }
        rows: dict[str, dict[int, float]] = {}
        for n, profile in profiles.items():
            for name, n_rows in profile.rows.items():
                rows.setdefault(name, {})[n] = n_rows
        return replace(
            nearest,
            examples=examples,
            compute_s=compute_s,
            variables=variables,
            rows={name: _on_line(known, examples) for name, known in rows.items()},
        )

    def step_of(self, examples: int) -> StepSummary:
        """The step, with the measured rows of its sparse gradients.

        Shapes do not show how many different ids a batch has.
        """
        rows = self.profile(examples).rows
        variables = tuple(
            v.model_copy(update={"rows_per_example": rows[v.name] / examples, "rows_per_step": 0.0})
            if v.sparse and v.name in rows
            else v
            for v in self.step.variables
        )
        return self.step.model_copy(update={"variables": variables})

    def is_between(self, examples: int) -> bool:
        """True if a number of examples lies within the measured ones."""
        return min(self.measured) <= examples <= max(self.measured)

    def nearest(self, examples: int) -> ProfiledStep:
        """Measured step with the nearest number of examples."""
        return self.measured[_nearest(self.measured, examples)]

    def waiting_s(self, planned: PlannedStep) -> float:
        """Time that a step takes beside its simulation.

        It is that of steps without exchanges, which last until the slowest worker has ended. Of more workers
        than were profiled, the slowest takes longer: the median of the largest of n normal values is
        Φ⁻¹(0.5^(1/n)) standard deviations above theirs. With an exchange every p steps, the mean of p steps
        varies less by √p. The wait of steps without exchanges is not divided: that mean has the long steps
        which a median of single steps leaves out.
        """
        near = self.nearest(max(planned.profiles))
        if not planned.flows:
            return near.idle_s
        more = slowest(len(planned.plan.replicas_per_task)) - slowest(near.n_workers)
        period = min(flow.period for flow in planned.flows)
        return near.idle_s + max(0.0, more) * near.spread_s / math.sqrt(period)


def _nearest(known: Iterable[int], examples: int) -> int:
    return min(known, key=lambda own: abs(own - examples))


def _on_line(known: Mapping[int, float], examples: int) -> float:
    """Value at a number of examples, on the line through the two nearest known ones; with one, in proportion.

    It is at least the nearest known value; with fewer examples than that has, at least in proportion to it.
    """
    first, *others = sorted(known, key=lambda own: abs(own - examples))[:2]
    share = examples / first
    if not others:
        return known[first] * share
    slope = (known[first] - known[others[0]]) / (first - others[0])
    return max(known[first] + slope * (examples - first), known[first] * min(share, 1.0))


def suiting(
    workloads: Sequence[ProfiledWorkload], updates: Updates, batch_size: int | None = None
) -> Sequence[ProfiledWorkload]:
    """Profiled steps that suit best, one for each workload and way of computing it.

    Those have the same updates, or else the usual ones; of these, the nearest batch, because others may have
    other variables.

    Args:
        batch_size: requested batch; None for the workload's own.
    """

    def difference(workload: ProfiledWorkload) -> tuple[float, ...]:
        own, usual = workload.updates != updates, workload.updates != USUAL_UPDATES
        if batch_size is None:
            return own, usual, workload.usual_batch_size is None
        return own, usual, abs(workload.batch_size - batch_size)

    alike: dict[str, list[ProfiledWorkload]] = {}
    for workload in workloads:
        alike.setdefault(workload.title, []).append(workload)
    return [min(own, key=difference) for own in alike.values()]


def planned_step(workload: ProfiledWorkload, chosen: Chosen, topology: Topology) -> PlannedStep:
    """A workload's step under a strategy on a topology.

    Raises:
        StrategyError: the strategy cannot lay it out there.
    """
    plan = chosen.plan(workload.step, topology)
    shapes = topology_of(plan).kinds().examples
    profiles = {sum(shape): workload.profile(sum(shape)) for shape in shapes}
    return PlannedStep(
        plan=plan,
        step=workload.step,
        flows=exchanges(plan, workload.step_of(max(profiles))),
        profiles=profiles,
    )
