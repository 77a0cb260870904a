"""Measured steps and profiles of stored runs, as fits and predictions need them."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import TypeAlias, cast

from harness.errors import StoreError, UsageError
from harness.experiment.cases import CONTROL, TWIN
from harness.experiment.chosen_strategy import Chosen, choose
from harness.experiment.model import AS_USUAL, Computation, Precision
from harness.experiment.references import BATCH_SIZE, StrategyRef, without_batch
from harness.prediction.fit import Observation
from harness.prediction.profile import StoredProfile, typical_profile
from harness.prediction.profiled_workload import (
    ProfiledStep,
    ProfiledWorkload,
    Updates,
    planned_step,
    suiting,
    updates_of,
)
from harness.prediction.step_model import Machines, PlannedStep
from harness.records.conditions import BatchRule, requested_batch
from harness.records.record import CORES_SHARED, Record
from harness.records.run_documents import PLAN, PROFILE
from harness.records.stored_run import StoredRun
from harness.written_values import Scalar
from strategies.errors import StrategyError
from strategies.plan.exchanges.flow import Flow
from strategies.topology import Device, Topology
from strategies.user_strategies import read_plan

BYTES_PER_MBIT = 125_000
VALUES_OF_FRAMES = 1448 / 1514
"""Part of an Ethernet frame that is payload; the rest is headers of Ethernet, IP and TCP.

A link limited to 300 Mbit/s carries 286.9 Mbit/s of payload, as measured.
"""
SERVERS = "servers"
"""Family of plans with parameter servers; others are named after their collectives' transport."""


_Key: TypeAlias = tuple[str, frozenset[tuple[str, Scalar]], Computation, Updates, str]
"""Everything that changes a step, except its number of examples."""


def profiled_records(run: StoredRun) -> Sequence[Record]:
    """Usable records of the strategy `none` with one replica per worker."""
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
            params = frozenset(without_batch(record.workload_params).items())
            updates = updates_of(choose(strategy_of(record)))
            key = record.workload, params, _computation(record), updates, step
            stored[key].append((record, profile))
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
    largest, stored = max(profiles, key=lambda pair: _requested_batch(pair[0]))
    as_written = [record for record, _ in profiles if BATCH_SIZE not in record.workload_params]
    by_examples: defaultdict[int, list[tuple[Record, StoredProfile]]] = defaultdict(list)
    for record, profile in profiles:
        by_examples[profile.profile.examples].append((record, profile))
    return ProfiledWorkload(
        name=largest.workload,
        params=without_batch(largest.workload_params),
        computation=_computation(largest),
        updates=updates_of(choose(strategy_of(largest))),
        step=stored.step,
        batch_rule=batch_rule_of(largest),
        batch_size=_requested_batch(largest),
        usual_batch_size=_requested_batch(as_written[0]) if as_written else None,
        measured={examples: _profiled_step(repeats) for examples, repeats in by_examples.items()},
    )


def _profiled_step(profiles: Sequence[tuple[Record, StoredProfile]]) -> ProfiledStep:
    """Mean of the repeats with the most workers, of profiles of as many examples."""
    n_workers = max(record.workers for record, _ in profiles)
    repeats = [(record, stored) for record, stored in profiles if record.workers == n_workers]
    scaled, idle_s = [], []
    for record, stored in repeats:
        step_s = record.median_step_s or 0.0
        busy_s = _busy_s(record, step_s)
        scaled.append(stored.profile.scaled_to(busy_s))
        idle_s.append(max(0.0, step_s - busy_s * turns(n_workers, n_shared_of(record))))
    return ProfiledStep(
        profile=typical_profile(scaled),
        idle_s=statistics.fmean(idle_s),
        spread_s=statistics.fmean(_spread_s(record) for record, _ in repeats),
        n_workers=n_workers,
    )


def observations(run: StoredRun, workloads: Sequence[ProfiledWorkload]) -> Iterator[Observation]:
    """Measured steps with exchanges that have a plan and a profile, and are simulated."""
    for record in run.records:
        if record.strategy == CONTROL or not is_usable(record) or record.workers * record.replicas == 1:
            continue
        profiled = profiled_case(run, record, workloads)
        if profiled is None:
            continue
        workload, chosen = profiled
        assert record.batch_size is not None
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
        if has_unknown_wait(record):
            continue
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


def has_unknown_wait(record: Record) -> bool:
    """True if the duration of a step on CPUs includes an unknown wait for cores that workers share."""
    return record.device == "cpu" and shares_cores(record) and n_shared_of(record) is None


def _computation(record: Record) -> Computation:
    method = record.method
    if method is None:
        return AS_USUAL
    return Computation(precision=cast("Precision", method.precision), xla=method.xla, tf32=method.tf32)


def batch_rule_of(record: Record) -> BatchRule:
    """Rule of a record's batch size."""
    return "global" if record.method is None else record.method.batch_rule


def _requested_batch(record: Record) -> int:
    """Batch size under the batch rule: of all replicas, or of each."""
    assert record.batch_size is not None
    return requested_batch(record.batch_size, batch_rule_of(record), record.workers * record.replicas)


def profiled_case(
    run: StoredRun, record: Record, workloads: Sequence[ProfiledWorkload]
) -> tuple[ProfiledWorkload, Chosen] | None:
    """Profiled workload and strategy of a record; None if it has no profile, or no plan of ours."""
    try:
        chosen = _chosen(run, record)
    except (UsageError, StoreError):
        return None  # its file is no longer there; reports name damaged ones
    facts = record.workload, without_batch(record.workload_params), _computation(record)
    own = [w for w in workloads if (w.name, w.params, w.computation) == facts]
    if not own or chosen.strategy.runner != "graph":
        return None
    return suiting(own, updates_of(chosen), _requested_batch(record))[0], chosen


def strategy_of(record: Record) -> StrategyRef:
    """Strategy of a record, with its parameters."""
    params = {key: v for key, v in record.strategy_params.items() if v is not None and key != TWIN}
    return StrategyRef(name=record.strategy, params=params)


def _chosen(run: StoredRun, record: Record) -> Chosen:
    """Strategy of a record: a registered one, or else the plan that its repeat stored.

    Raises:
        UsageError: there is none.
        StoreError: the plan cannot be read.
    """
    try:
        return choose(strategy_of(record))
    except UsageError:
        data = run.file(record, PLAN)
        if data is None:
            raise
    try:
        text = data.decode(errors="replace")
        edited = read_plan(text, name=record.strategy, where=run.name_of(record, PLAN))
    except StrategyError as error:
        raise UsageError(str(error), field="strategies") from error
    return Chosen(strategy=edited.strategy, params=edited.params, edited=edited)


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
