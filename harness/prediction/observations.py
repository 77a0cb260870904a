"""Measured steps and profiles of stored runs, as fits and predictions need them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.canonical import JsonValue
from harness.errors import StoreError, UsageError
from harness.experiment.cases import CONTROL
from harness.experiment.chosen_strategy import Chosen, choose
from harness.experiment.references import StrategyRef
from harness.prediction.fit import Observation
from harness.prediction.profile import StepProfile, StoredProfile
from harness.prediction.step_model import Machines, PlannedStep
from harness.records.record import Record
from harness.records.run_documents import PROFILE
from harness.records.stored_run import StoredRun
from strategies.errors import StrategyError
from strategies.plan.exchanges.flow import Flow
from strategies.plan.schema import StepSummary
from strategies.planner import exchanges, topology_of
from strategies.topology import Topology

BYTES_PER_MBIT = 125_000
SERVERS = "servers"
"""Family of plans with parameter servers; others are named after their collectives' transport."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfiledWorkload:
    """A workload as profiled in a run.

    Attributes:
        params: its parameters, except the batch size.
        batch_size: largest global batch of its profiles.
        profiles: examples of a worker → profile, scaled to untraced steps.
        idle_s: examples of a worker → time in which workers without exchanges wait in a step.
    """

    name: str
    params: Mapping[str, JsonValue]
    step: StepSummary
    batch_size: int
    profiles: dict[int, StepProfile] = field(default_factory=dict)
    idle_s: dict[int, float] = field(default_factory=dict)

    @property
    def title(self) -> str:
        params = ",".join(f"{key}={value}" for key, value in self.params.items())
        return f"{self.name}:{params}" if params else self.name

    def profile(self, examples: int) -> StepProfile:
        """Profile for a number of examples, on a line through the two nearest ones that were measured.

        With one measured profile, computation is proportional to examples, and updates do not change.
        """
        if examples in self.profiles:
            return self.profiles[examples]
        nearest = sorted(self.profiles, key=lambda known: abs(known - examples))[:2]
        first = self.profiles[nearest[0]]
        if len(nearest) == 1:
            compute_s = first.compute_s * examples / nearest[0]
        else:
            other = self.profiles[nearest[1]]
            slope_s = (first.compute_s - other.compute_s) / (nearest[0] - nearest[1])
            least_s = first.compute_s * examples / max(nearest[0], examples)
            compute_s = max(
                first.compute_s + slope_s * (examples - nearest[0]), min(least_s, first.compute_s)
            )
        factor = compute_s / first.compute_s if first.compute_s else 1.0
        times = {
            name: replace(own.scaled(factor), update_s=own.update_s) for name, own in first.variables.items()
        }
        return replace(first, examples=examples, compute_s=compute_s, variables=times)

    def is_between(self, examples: int) -> bool:
        """True if a number of examples lies within the measured ones."""
        return min(self.profiles) <= examples <= max(self.profiles)

    def waiting_s(self, examples: int) -> float:
        """Time in which workers without exchanges wait in a step, at the nearest number of examples."""
        return self.idle_s[min(self.idle_s, key=lambda known: abs(known - examples))]


def profiled_workloads(run: StoredRun) -> dict[str, ProfiledWorkload]:
    """Workloads of a run with profiles, by title.

    Raises:
        UsageError: the run has no profile, or a damaged one.
    """
    workloads: dict[str, ProfiledWorkload] = {}
    for record in run.records:
        if record.strategy != CONTROL or record.status != "ok" or record.batch_size is None:
            continue
        if record.replicas > 1:
            raise UsageError(
                f"{run.path} must have one replica per worker, got {record.replicas}, which is not predicted",
                field="run",
            )
        try:
            data = run.file(record, PROFILE)
            stored = None if data is None else StoredProfile.from_document(data)
        except (StoreError, ValueError) as error:
            raise UsageError(
                f"{run.name_of(record, PROFILE)} must be as it was written: {error}; run {CONTROL} again",
                field="run",
            ) from error
        if stored is None:
            continue
        own = ProfiledWorkload(
            name=record.workload,
            params={key: value for key, value in record.workload_params.items() if key != "batch_size"},
            step=stored.step,
            batch_size=record.batch_size,
        )
        known = workloads.get(own.title, own)
        if own.batch_size > known.batch_size:
            known = replace(known, batch_size=own.batch_size)
        workloads[own.title] = known
        step_s = _step_s(record)
        busy_s = _busy_s(record, step_s)
        known.profiles[stored.profile.examples] = stored.profile.scaled_to(busy_s)
        known.idle_s[stored.profile.examples] = max(0.0, step_s - busy_s)
    if not workloads:
        raise UsageError(
            f"{run.path} must have a profile of a step, got none; run it with the strategy {CONTROL} and "
            "measure.trace=true",
            field="run",
        )
    return workloads


def observations(run: StoredRun, workloads: Mapping[str, ProfiledWorkload]) -> Iterator[Observation]:
    """Measured steps of all strategies with exchanges that have a plan and a profile."""
    for record in run.records:
        title = next((title for title, own in workloads.items() if _is_of(record, own)), None)
        if title is None or record.status != "ok" or record.is_broken_by_faults or record.batch_size is None:
            continue
        workload = workloads[title]
        chosen = _chosen(record)
        topology = Topology(
            replicas_per_task=(record.replicas,) * record.workers, batch_size=record.batch_size
        )
        if chosen is None or topology.n_replicas == 1:
            continue
        planned = planned_step(workload, chosen, topology)
        if not planned.flows or record.cpu_s_per_step is None:
            continue
        examples = topology.kinds().examples[0]
        rate = None if record.link is None else record.link.measured_mbit
        yield Observation(
            family=family(planned.flows),
            planned=planned,
            machines=Machines(link_bytes_per_s=None if rate is None else rate * BYTES_PER_MBIT),
            step_s=_step_s(record),
            cpu_s=record.cpu_s_per_step,
            idle_s=workload.waiting_s(sum(examples)),
        )


def batch_of(workload: ProfiledWorkload, experiment: Mapping[str, JsonValue], n_workers: int) -> int:
    """Global batch at a number of workers, by the experiment's rule."""
    measure = experiment.get("measure")
    rule = measure.get("batch") if isinstance(measure, Mapping) else None
    return max(workload.profiles) * n_workers if rule == "per-replica" else workload.batch_size


def planned_step(workload: ProfiledWorkload, chosen: Chosen, topology: Topology) -> PlannedStep:
    """A workload's step under a strategy on a topology.

    Raises:
        StrategyError: the strategy cannot lay it out there.
    """
    plan = chosen.plan(workload.step, topology)
    shapes = topology_of(plan).kinds().examples
    return PlannedStep(
        plan=plan,
        step=workload.step,
        flows=exchanges(plan, workload.step),
        profiles={sum(shape): workload.profile(sum(shape)) for shape in shapes},
    )


def family(flows: Sequence[Flow]) -> str:
    """Kind of a plan's exchanges, by which errors of predictions are counted."""
    transports = {flow.transport for flow in flows}
    return SERVERS if "grpc" in transports else min(transports, default="none")


def _is_of(record: Record, workload: ProfiledWorkload) -> bool:
    params = {key: value for key, value in record.workload_params.items() if key != "batch_size"}
    return record.workload == workload.name and params == workload.params and record.strategy != CONTROL


def _chosen(record: Record) -> Chosen | None:
    """Strategy of a record; None if it has no plan of ours, or is no longer there."""
    params = {key: value for key, value in record.strategy_params.items() if value is not None}
    try:
        chosen = choose(StrategyRef(name=record.strategy, params=params))
    except (UsageError, StrategyError):
        return None
    return chosen if chosen.strategy.runner == "graph" else None


def _step_s(record: Record) -> float:
    """Time of a step: the median, or the mean if steps of one period differ."""
    assert record.step_s is not None
    if (record.period or 1) > 1 or record.step_s.p50 is None:
        return record.step_s.mean or 0.0
    return record.step_s.p50


def _busy_s(record: Record, step_s: float) -> float:
    """Processor time of a step; on GPUs, and on several cores, its duration."""
    cores = None if record.method is None else record.method.cores_per_worker
    if record.device != "cpu" or not record.cpu_s_per_step or (cores is not None and cores > 1):
        return step_s
    return min(step_s, statistics.fmean(record.cpu_s_per_step))
