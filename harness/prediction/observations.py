"""Measured steps and profiles of stored runs, as fits and predictions need them."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import TypeAlias, cast

from harness.errors import StoreError, UsageError
from harness.experiment.cases import CONTROL
from harness.experiment.chosen_strategy import Chosen, choose
from harness.experiment.model import AS_USUAL, Computation, Precision
from harness.experiment.references import StrategyRef, WorkloadRef
from harness.prediction.fit import Observation
from harness.prediction.profile import StepProfile, StoredProfile, typical_profile
from harness.prediction.step_model import Machines, PlannedStep, slowest
from harness.records.record import CORES_SHARED, Record
from harness.records.run_documents import PROFILE
from harness.records.stored_run import StoredRun
from harness.written_values import Scalar
from strategies.errors import StrategyError
from strategies.plan.exchanges.flow import Flow
from strategies.plan.schema import StepSummary
from strategies.planner import exchanges, topology_of
from strategies.topology import Device, Topology

BYTES_PER_MBIT = 125_000
VALUES_OF_FRAMES = 1448 / 1514
"""Part of an Ethernet frame that is payload; the rest is headers of Ethernet, IP and TCP.

A link limited to 300 Mbit/s carries 286.9 Mbit/s of payload, as measured.
"""
SERVERS = "servers"
"""Family of plans with parameter servers; others are named after their collectives' transport."""
_BATCH_SIZE = "batch_size"


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfiledWorkload:
    """A step as profiled in a run: of one workload, computed in one way.

    Attributes:
        params: parameters of the workload, except the batch size.
        computation: precision and compiler.
        batch_size: largest requested batch of its profiles, under the run's batch rule.
        profiles: examples of a worker → profile, scaled to untraced steps.
        idle_s: examples of a worker → time in which workers without exchanges wait in a step.
        spread_s: examples of a worker → standard deviation of the duration of a step without exchanges.
        n_measured: examples of a worker → workers of the profiled steps.
    """

    name: str
    params: Mapping[str, Scalar]
    computation: Computation = AS_USUAL
    step: StepSummary
    batch_size: int
    profiles: Mapping[int, StepProfile] = field(default_factory=dict)
    idle_s: Mapping[int, float] = field(default_factory=dict)
    spread_s: Mapping[int, float] = field(default_factory=dict)
    n_measured: Mapping[int, int] = field(default_factory=dict)

    @property
    def title(self) -> str:
        workload = WorkloadRef(reference=self.name, params=self.params)
        return " ".join(filter(None, (str(workload), str(self.computation))))

    def is_of(self, workload: WorkloadRef) -> bool:
        """True if it is the step of a workload, whatever its batch size."""
        return self.name == workload.reference and self.params == _without_batch(workload.params)

    def profile(self, examples: int) -> StepProfile:
        """Profile for a number of examples, on a line through the two nearest ones that were measured.

        With one measured profile, computation and rows are proportional to examples, and updates do not
        change.
        """
        if examples in self.profiles:
            return self.profiles[examples]
        first, *others = sorted(self.profiles.values(), key=lambda known: abs(known.examples - examples))[:2]

        def at(figure: Callable[[StepProfile], float]) -> float:
            own, share = figure(first), examples / first.examples
            if not others:
                return own * share
            slope = (own - figure(others[0])) / (first.examples - others[0].examples)
            return max(own + slope * (examples - first.examples), own * min(share, 1.0))

        compute_s = at(lambda profile: profile.compute_s)

        def rows_of(name: str) -> float:
            return at(lambda profile: profile.rows.get(name, first.rows[name]))

        factor = compute_s / first.compute_s
        variables = {
            name: replace(times.scaled(factor), update_s=times.update_s)
            for name, times in first.variables.items()
        }
        return replace(
            first,
            examples=examples,
            compute_s=compute_s,
            variables=variables,
            rows={name: rows_of(name) for name in first.rows},
        )

    def step_of(self, examples: int) -> StepSummary:
        """The step, with the measured rows of its sparse gradients.

        Shapes do not tell how many different ids a batch has.
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
        return min(self.profiles) <= examples <= max(self.profiles)

    def idle_of(self, examples: int) -> float:
        """Time in which workers without exchanges wait in a step, at the nearest number of examples."""
        return self.idle_s[_nearest(self.idle_s, examples)]

    def waiting_s(self, planned: PlannedStep) -> float:
        """Time that a step takes beside its simulation.

        It is that of steps without exchanges, which last until the slowest worker has ended. Of more workers
        than were profiled, the slowest takes longer: the median of the largest of n normal values is
        Φ⁻¹(0.5^(1/n)) standard deviations above theirs. With an exchange every p steps, the mean of p steps
        varies less by √p. The wait of steps without exchanges is not divided: that mean has the long steps
        which a median of single steps leaves out.
        """
        examples = max(planned.profiles)
        idle_s = self.idle_of(examples)
        if not planned.flows or not self.spread_s:
            return idle_s
        near = _nearest(self.spread_s, examples)
        more = slowest(len(planned.plan.replicas_per_task)) - slowest(self.n_measured[near])
        period = min(flow.period for flow in planned.flows)
        return idle_s + max(0.0, more) * self.spread_s[near] / math.sqrt(period)


def _nearest(known: Iterable[int], examples: int) -> int:
    return min(known, key=lambda own: abs(own - examples))


_Key: TypeAlias = tuple[str, frozenset[tuple[str, Scalar]], Computation, str]
"""Everything that changes a step, except its number of examples."""


def profiled_records(run: StoredRun) -> Sequence[Record]:
    """Measured cases of a run without exchanges and faults, with one replica per worker."""
    return [
        record
        for record in run.records
        if record.strategy == CONTROL and record.replicas == 1 and is_usable(record)
    ]


def is_usable(record: Record) -> bool:
    """True if a record has the time of a correct step without faults."""
    is_wrong = record.equivalence is not None and record.equivalence.wrong
    has_faults = record.method is not None and bool(record.method.faults)
    return (
        record.status == "ok"
        and not (is_wrong and record.strategy_class != "control")
        and not has_faults
        and record.batch_size is not None
        and bool(record.median_step_s)
    )


def profiled_workloads(run: StoredRun) -> Sequence[ProfiledWorkload]:
    """Profiled steps of a run. Those of one workload are different steps.

    Of profiles of as many examples, those with the most workers are averaged.

    Raises:
        UsageError: the run has no profile, or a damaged one.
    """
    stored: defaultdict[_Key, list[tuple[Record, StoredProfile]]] = defaultdict(list)
    for record in profiled_records(run):
        profile = _profile_of(run, record)
        if profile is not None:
            step = profile.step.model_copy(update={"batch": (), "n_nodes": 0}).model_dump_json()
            params = frozenset(_without_batch(record.workload_params).items())
            stored[record.workload, params, _computation(record), step].append((record, profile))
    if not stored:
        raise UsageError(
            f"{run.path} must have a profile of a step, got none; run it with the strategy {CONTROL}, one "
            "replica per worker and measure.trace=true",
            field="run",
        )
    return [_combined(profiles) for profiles in stored.values()]


def _profile_of(run: StoredRun, record: Record) -> StoredProfile | None:
    try:
        data = run.file(record, PROFILE)
        return None if data is None else StoredProfile.from_document(data)
    except (StoreError, ValueError) as error:
        raise UsageError(
            f"{run.name_of(record, PROFILE)} must be as it was written: {error}; run {CONTROL} again",
            field="run",
        ) from error


def _combined(profiles: Sequence[tuple[Record, StoredProfile]]) -> ProfiledWorkload:
    """One workload from the profiles of its records."""
    most_workers: dict[int, int] = {}
    for record, stored in profiles:
        examples = stored.profile.examples
        most_workers[examples] = max(record.workers, most_workers.get(examples, 0))
    scaled: defaultdict[int, list[StepProfile]] = defaultdict(list)
    idle_s: defaultdict[int, list[float]] = defaultdict(list)
    spread_s: defaultdict[int, list[float]] = defaultdict(list)
    for record, stored in profiles:
        examples = stored.profile.examples
        if record.workers == most_workers[examples]:
            step_s = record.median_step_s or 0.0
            busy_s = _busy_s(record, step_s)
            scaled[examples].append(stored.profile.scaled_to(busy_s))
            n_turns = turns(record.workers, n_shared_of(record))
            idle_s[examples].append(max(0.0, step_s - busy_s * n_turns))
            spread_s[examples].append(_spread_s(record))
    largest, stored = max(profiles, key=lambda pair: _requested_batch(pair[0]))
    return ProfiledWorkload(
        name=largest.workload,
        params=_without_batch(largest.workload_params),
        computation=_computation(largest),
        step=stored.step,
        batch_size=_requested_batch(largest),
        profiles={examples: typical_profile(repeats) for examples, repeats in scaled.items()},
        idle_s={examples: statistics.fmean(repeats) for examples, repeats in idle_s.items()},
        spread_s={examples: statistics.fmean(repeats) for examples, repeats in spread_s.items()},
        n_measured=most_workers,
    )


def observations(run: StoredRun, workloads: Sequence[ProfiledWorkload]) -> Iterator[Observation]:
    """Measured steps with exchanges that have a plan and a profile, and are simulated."""
    for record in run.records:
        workload = None if record.strategy == CONTROL else workload_of(record, workloads)
        if workload is None or not is_usable(record):
            continue
        chosen = _chosen(record)
        assert record.batch_size is not None
        if chosen is None or record.workers * record.replicas == 1:
            continue
        try:
            topology = Topology(
                replicas_per_task=(record.replicas,) * record.workers,
                batch_size=record.batch_size,
                device=replica_device(record.device),
            )
            planned = planned_step(workload, chosen, topology)
        except StrategyError:
            continue  # an older version planned these parameters
        if not_simulated(planned) or not planned.flows or record.cpu_s_per_step is None:
            continue
        if record.device == "cpu" and shares_cores(record) and n_shared_of(record) is None:
            continue  # its duration includes an unknown wait for cores
        rate = None if record.link is None else record.link.measured_mbit
        step_s = record.median_step_s or 0.0
        yield Observation(
            family=family(planned.flows),
            planned=planned,
            machines=Machines(
                cores=cores_of(record),
                n_shared=n_shared_of(record),
                link_bytes_per_s=None if rate is None else rate * BYTES_PER_MBIT,
                link_burst_bytes=burst_of(record),
            ),
            step_s=step_s,
            cpu_s=record.cpu_s_per_step if _is_one_core(record) else (step_s,) * record.workers,
            idle_s=workload.waiting_s(planned),
        )


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


def not_simulated(planned: PlannedStep) -> str | None:
    """Work or order of updates of a plan that the simulation does not know; None if it knows all."""
    execution = planned.plan.execution
    if planned.plan.aggregation is not None:
        return "a rule of robust aggregation"
    if not execution.waits_for_all and planned.flows:
        return "updates that do not wait for all workers"
    return "micro-batches" if execution.micro_batches > 1 else None


def family(flows: Sequence[Flow]) -> str:
    """Kind of a plan's exchanges, by which errors of predictions are counted."""
    transports = {flow.transport for flow in flows}
    return SERVERS if "grpc" in transports else min(transports, default="none")


def replica_device(device: str) -> Device:
    """Device of the replicas on workers with a device of an experiment."""
    return cast("Device", "cpu" if device == "tpu-emulated" else device)


def cores_of(record: Record) -> float:
    """Cores of each worker."""
    cores = None if record.method is None else record.method.cores_per_worker
    return 1.0 if cores is None else cores


def burst_of(record: Record) -> float:
    """Bytes that pass the link of each worker at once after a pause; 0 without a limit."""
    links = () if record.link is None else record.link.workers or ()
    return float(max((link.burst_bytes or 0 for link in links), default=0))


def n_shared_of(record: Record) -> int | None:
    """Number of cores that are assigned to the workers round-robin; None if each has its own.

    Shared cores of some machines of a cluster are not known, and durations of GPUs and of several threads
    already contain the wait for others.
    """
    if not shares_cores(record) or record.provider == "cluster" or not _is_one_core(record):
        return None
    return None if record.machine is None else record.machine.n_cores


def shares_cores(record: Record) -> bool:
    """True if workers had too few cores."""
    return any(note.startswith(CORES_SHARED) for note in record.notes)


def _without_batch(params: Mapping[str, Scalar]) -> dict[str, Scalar]:
    return {key: value for key, value in params.items() if key != _BATCH_SIZE}


def _computation(record: Record) -> Computation:
    method = record.method
    if method is None:
        return AS_USUAL
    return Computation(precision=cast("Precision", method.precision), xla=method.xla, tf32=method.tf32)


def _requested_batch(record: Record) -> int:
    """Batch size under the batch rule: of all replicas, or of each."""
    assert record.batch_size is not None
    is_each = record.method is not None and record.method.batch_rule == "per-replica"
    return record.batch_size // (record.workers * record.replicas) if is_each else record.batch_size


def workload_of(record: Record, workloads: Sequence[ProfiledWorkload]) -> ProfiledWorkload | None:
    """Profiled workload of a record; None if it has no profile."""
    facts = record.workload, _without_batch(record.workload_params), _computation(record)
    return next((w for w in workloads if (w.name, w.params, w.computation) == facts), None)


def strategy_of(record: Record) -> StrategyRef:
    """Strategy of a record, with its parameters."""
    params = {key: value for key, value in record.strategy_params.items() if value is not None}
    return StrategyRef(name=record.strategy, params=params)


def _chosen(record: Record) -> Chosen | None:
    """Strategy of a record; None if it has no plan of ours, or is no longer there."""
    try:
        chosen = choose(strategy_of(record))
    except (UsageError, StrategyError):
        return None
    return chosen if chosen.strategy.runner == "graph" else None


def turns(n_workers: int, n_shared: int | None) -> int:
    """Most workers that share a set of cores.

    Args:
        n_shared: number of sets, see `step_model.Machines`.
    """
    return 1 if n_shared is None else math.ceil(n_workers / n_shared)


def _spread_s(record: Record) -> float:
    """Standard deviation of a step's duration, by its median and its 90th percentile."""
    steps = record.step_s
    if steps is None or steps.p50 is None or steps.p90 is None:
        return 0.0
    return max(0.0, steps.p90 - steps.p50) / NormalDist().inv_cdf(0.9)


def _busy_s(record: Record, step_s: float) -> float:
    """Processor time of a step without exchanges, at most its duration."""
    if not record.cpu_s_per_step or not _is_one_core(record):
        return step_s
    return min(step_s, statistics.fmean(record.cpu_s_per_step))


def _is_one_core(record: Record) -> bool:
    """True if a worker's processor time is the time in which its only core works.

    Of GPUs and of several cores, the duration of a step counts as their time.
    """
    return record.device == "cpu" and cores_of(record) <= 1.0
