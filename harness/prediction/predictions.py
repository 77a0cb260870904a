"""Predictions of steps at other numbers of workers and other links."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.canonical import JsonValue
from harness.errors import UsageError
from harness.experiment.cases import CONTROL
from harness.experiment.chosen_strategy import Chosen, choose
from harness.experiment.model import NO_FAULTS, Experiment
from harness.experiment.references import StrategyRef, WorkloadRef
from harness.prediction.observations import (
    BYTES_PER_MBIT,
    VALUES_OF_FRAMES,
    family,
    not_simulated,
    replica_device,
    turns,
)
from harness.prediction.probe import Probe
from harness.prediction.profiled_workload import ProfiledWorkload, planned_step, suiting, updates_of
from harness.prediction.step_activities import core, link_in, link_out
from harness.prediction.step_model import Machines, PlannedStep, SimulatedStep, simulate_step
from harness.records.conditions import BatchRule, global_examples, requested_batch
from harness.records.predictions import INEXACT, Limit, PredictedTimeline, fastest_by_workers
from harness.written_values import n_of_workers
from strategies.errors import StrategyError
from strategies.plan.faults import Fault
from strategies.registry import ALONE
from strategies.topology import Topology

_MOST_OF_A_STEP = 0.4
"""Part of a step from which on something limits it; below, latencies do."""
_TWO_SIDED_95 = 1.96
SMALLEST_SPREAD = 0.05
"""Smallest standard deviation of a prediction's logarithm: repeats of one case differ by as much."""
_MOST_NAMED = 4
_SLOW = "slow"
"""Kind of fault that is simulated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """Conditions of a prediction, with one replica per worker.

    Attributes:
        batch_size: global batch. batch_rule: rule by which it was requested.
        link_mbit: limit of each worker's link; None without one.
        link_burst_bytes: bytes that pass such a link at once after a pause.
        cores: cores of each worker; None for those of the probe's.
        n_shared: number of core sets that the workers share, see `step_model.Machines`.
        faults: slow workers, in a step in which all of them are active.
        price_per_hour: price of one worker; None if it is not known.
    """

    workers: int
    batch_size: int
    batch_rule: BatchRule = "global"
    link_mbit: float | None = None
    link_burst_bytes: float = 0.0
    cores: float | None = None
    n_shared: int | None = None
    faults: tuple[Fault, ...] = ()
    price_per_hour: float | None = None

    @property
    def requested_batch(self) -> int:
        return requested_batch(self.batch_size, self.batch_rule, self.workers)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """Predicted step.

    Attributes:
        low_s, high_s: 95 % interval of the duration, by the errors of the probe's own steps.
        efficiency: duration without exchanges, as a part of the duration.
        busiest_bytes: bytes that the busiest task sends or receives per step.
        memory_bytes: variables and slots in the memory of the worker with the most, a server's included.
        limited_by: cause of most of the duration; `exchanges` is their processor time on workers.
        extrapolated: quantities beyond those that were measured.
        is_single: True if the strategy always runs one worker.
        is_exact: False if its result differs from one device's by design.
    """

    workload: str
    strategy: StrategyRef
    params: dict[str, JsonValue]
    question: Question
    step_s: float
    low_s: float
    high_s: float
    efficiency: float
    payload_bytes: int
    busiest_bytes: int
    memory_bytes: int
    limited_by: Limit
    extrapolated: tuple[str, ...] = ()
    is_single: bool = False
    is_exact: bool = True

    @property
    def title(self) -> str:
        return f"{self.strategy}{'' if self.is_exact else INEXACT}"

    @property
    def examples_per_s(self) -> float:
        return self.question.batch_size / self.step_s

    @property
    def worker_hours_per_million_examples(self) -> float:
        return self.question.workers / 3600 / self.examples_per_s * 1e6

    @property
    def cost_per_million_examples(self) -> float | None:
        price = self.question.price_per_hour
        return None if price is None else price * self.worker_hours_per_million_examples

    def to_document(self) -> dict[str, JsonValue]:
        question = self.question
        return {
            "workload": self.workload,
            "strategy": self.strategy.name,
            "strategy_params": self.params,
            "label": str(self.strategy),
            "workers": question.workers,
            "replicas": 1,
            "batch_size": question.batch_size,
            "batch_rule": question.batch_rule,
            "link_mbit": question.link_mbit,
            "step_s": self.step_s,
            "interval": {"low": self.low_s, "high": self.high_s},
            "examples_per_s": self.examples_per_s,
            "payload_bytes_per_step": self.payload_bytes,
            "busiest_bytes_per_step": self.busiest_bytes,
            "memory_bytes": self.memory_bytes,
            "limited_by": self.limited_by,
            "extrapolated": list(self.extrapolated),
            "efficiency": self.efficiency,
            "worker_hours_per_million_examples": self.worker_hours_per_million_examples,
            "cost_per_million_examples": self.cost_per_million_examples,
            "cores_per_worker": question.cores,
            "faults": [dict(fault.document()) for fault in question.faults],
            "fault_texts": [f"worker {fault.worker}: {fault}" for fault in question.faults],
            "is_single": self.is_single,
            "is_exact": self.is_exact,
        }


def predict_cases(
    workloads: Sequence[ProfiledWorkload], spec: Experiment, probe: Probe
) -> tuple[Sequence[Prediction], Sequence[str]]:
    """Predict the cases of an experiment, whatever its matrix.

    Args:
        workloads: profiled steps of its workloads.
        spec: the conditions, see `harness.prediction.conditions`.
    Returns:
        Predictions, and notes on cases that cannot be predicted, with the reason.
    Raises:
        UsageError: none can be predicted.
    """
    predictions: list[Prediction] = []
    errors: dict[str, UsageError] = {}
    refused: dict[str, dict[str, None]] = {}
    cores = float(spec.cluster.cores_per_worker[0])
    for ref in spec.workloads:
        try:
            profiled = _profiled(ref, workloads)
        except UsageError as error:
            errors.setdefault(str(error), error)
            continue
        for strategy in spec.strategies:
            chosen = choose(strategy)
            for workload, question in _questions(ref, chosen, profiled, spec):
                try:
                    predictions.append(predict(workload, strategy, chosen, question, probe))
                except UsageError as error:
                    errors.setdefault(error.message, error)
                    refused.setdefault(error.message, {})[str(strategy)] = None
    if not predictions:
        raise next(iter(errors.values()))
    notes = [
        f"{_shortened_list(list(refused[text]))}: {text}" if text in refused else text for text in errors
    ]
    if cores != probe.identity.cores:
        notes.append(
            f"with cores_per_worker={cores:g}, computation takes as long as profiled with "
            f"{probe.identity.cores:g}: several threads are not simulated yet, only exchanges use the cores"
        )
    return predictions, notes


def _shortened_list(names: Sequence[str]) -> str:
    """Names with commas; of many, the first ones and the number of the others."""
    n_more = len(names) - _MOST_NAMED
    return ", ".join(names) if n_more <= 1 else f"{', '.join(names[:_MOST_NAMED])} and {n_more} more"


def _questions(
    ref: WorkloadRef, chosen: Chosen, profiled: Sequence[ProfiledWorkload], spec: Experiment
) -> Iterator[tuple[ProfiledWorkload, Question]]:
    """Profiled steps that suit a strategy, each with its conditions."""
    is_single = chosen.strategy.name in ALONE
    # Faults of workers that wait for nobody have no effect, as in runs.
    scenarios = (NO_FAULTS,) if is_single or chosen.strategy.name == CONTROL else spec.scenarios
    counts, rates = ((1,), (None,)) if is_single else (spec.cluster.workers, spec.cluster.link.rate_mbit)
    requested = ref.batch_size or next((w.usual_batch_size for w in profiled if w.usual_batch_size), None)
    steps = suiting(profiled, updates_of(chosen), requested)
    for workload, n_workers, rate, scenario in itertools.product(steps, counts, rates, scenarios):
        batch_size = requested or workload.batch_size
        yield (
            workload,
            Question(
                workers=n_workers,
                batch_size=global_examples(batch_size, spec.measure.batch, n_workers),
                batch_rule=spec.measure.batch,
                link_mbit=rate,
                cores=float(spec.cluster.cores_per_worker[0]),
                faults=scenario.faults,
                price_per_hour=spec.price_per_hour(spec.cluster.device[0]),
            ),
        )


def predict(
    workload: ProfiledWorkload, strategy: StrategyRef, chosen: Chosen, question: Question, probe: Probe
) -> Prediction:
    """Predict a step.

    Args:
        strategy: name of the strategy. chosen: the strategy itself.
    Raises:
        UsageError: the strategy has no plan of ours or cannot run there, or the probe lacks its transport.
    """
    planned = planned_for(workload, chosen, question, probe)
    return predict_planned(workload, strategy, planned, question, probe)


def planned_for(workload: ProfiledWorkload, chosen: Chosen, question: Question, probe: Probe) -> PlannedStep:
    """Plan a step that can be simulated.

    Raises:
        UsageError: the strategy has no plan of ours, cannot run there, or its steps are not simulated.
    """
    if chosen.strategy.runner != "graph":
        raise UsageError(
            f"must be one that stratbench plans, got {chosen.strategy.name}, whose exchanges TensorFlow "
            "makes; measure it with `stratbench run`",
            field="strategies",
        )
    try:
        topology = Topology(
            replicas_per_task=(1,) * question.workers,
            batch_size=question.batch_size,
            device=replica_device(probe.identity.device),
        )
        planned = planned_step(workload, chosen, topology)
    except StrategyError as error:
        raise UsageError(str(error), field="strategies") from error
    _require_simulated(planned)
    return planned


def simulated(planned: PlannedStep, question: Question, probe: Probe) -> SimulatedStep:
    """Simulate a planned step.

    Raises:
        UsageError: the probe lacks a transport or a compressor.
    """
    probe.require(planned.flows)
    rate = question.link_mbit
    machines = Machines(
        cores=_cores(question, probe),
        n_shared=question.n_shared,
        link_bytes_per_s=None if rate is None else rate * BYTES_PER_MBIT * VALUES_OF_FRAMES,
        link_burst_bytes=question.link_burst_bytes,
        waits_s=_waits_s(question),
    )
    return simulate_step(planned, probe.costs, machines)


def _cores(question: Question, probe: Probe) -> float:
    return question.cores or probe.identity.cores


def predict_planned(
    workload: ProfiledWorkload,
    strategy: StrategyRef,
    planned: PlannedStep,
    question: Question,
    probe: Probe,
) -> Prediction:
    """Predict a planned step.

    Args:
        strategy: strategy whose plan it is.
    Raises:
        UsageError: the probe lacks a transport or a compressor.
    """
    step = simulated(planned, question, probe)
    examples = max(planned.profiles)
    n_turns = turns(question.workers, question.n_shared)
    alone_s = planned.profiles[examples].step_s * n_turns
    slow_s = max(_waits_s(question), default=0.0)
    waiting_s = workload.waiting_s(planned)
    step_s = step.step_s + waiting_s
    known = probe.spreads.get(family(planned.flows), max(probe.spreads.values(), default=0.0))
    spread = max(SMALLEST_SPREAD, known if planned.flows else 0.0)
    factor = math.exp(_TWO_SIDED_95 * spread)
    plan, traffic = planned.plan, planned.traffic
    beyond = {
        "examples per worker": not all(map(workload.is_between, planned.profiles)),
        "cores per worker": _cores(question, probe) != probe.identity.cores,
    }
    return Prediction(
        workload=workload.title,
        strategy=strategy,
        params=dict(plan.strategy_params),
        question=question,
        step_s=step_s,
        low_s=step_s / factor,
        high_s=step_s * factor,
        efficiency=(alone_s + slow_s + workload.nearest(examples).idle_s) / step_s,
        payload_bytes=sum(alike.sent_bytes * len(alike.tasks) for alike in traffic),
        busiest_bytes=max((alike.busiest_bytes for alike in traffic), default=0),
        memory_bytes=plan.worker_bytes + max(plan.server_bytes, default=0),
        limited_by=_limit(planned, step, alone_s + slow_s, step_s, _cores(question, probe), n_turns),
        extrapolated=(
            *(name for name, is_beyond in beyond.items() if is_beyond),
            *probe.beyond(planned.flows, question.workers),
        ),
        is_single=plan.strategy in ALONE,
        is_exact=plan.strategy_class not in ("bounded", "statistical"),
    )


def _profiled(ref: WorkloadRef, workloads: Sequence[ProfiledWorkload]) -> Sequence[ProfiledWorkload]:
    """Profiled steps of a workload."""
    own = [workload for workload in workloads if workload.is_of(ref)]
    if not own:
        names = ", ".join(dict.fromkeys(workload.title for workload in workloads))
        raise UsageError(
            f"must be profiled, got {ref}, and profiles of {names}; name one of these, or predict the "
            "experiment, which profiles its workloads",
            field="workloads",
        )
    return own


def _waits_s(question: Question) -> Sequence[float]:
    """Time that each worker waits before its step; empty if none is slow.

    Raises:
        UsageError: a fault is no slow worker, or its worker is not there.
    """
    delays_s = [0.0] * question.workers
    for fault in question.faults:
        if fault.kind != _SLOW:
            raise UsageError(
                f"must be slow workers for predictions, got {fault.kind}; measure it with `stratbench run`",
                field="faults",
            )
        if fault.worker >= question.workers:
            raise UsageError(
                f"must be one of {question.workers} workers, counted from 0, got {fault.worker}; raise "
                "--workers",
                field="faults",
            )
        delays_s[fault.worker] += fault.delay_ms / 1000
    return delays_s if any(delays_s) else ()


def _require_simulated(planned: PlannedStep) -> None:
    """Refuse plans with work or an order of updates that the simulation does not know.

    Raises:
        UsageError: the plan has a rule, micro-batches, or updates that do not wait for all workers.
    """
    reason = not_simulated(planned)
    if reason is not None:
        raise UsageError(
            f"must be one whose steps are simulated, got {planned.plan.strategy} with {reason}; "
            "measure it with `stratbench run`",
            field="strategies",
        )


def _limit(
    planned: PlannedStep, step: SimulatedStep, computing_s: float, step_s: float, cores: float, n_turns: int
) -> Limit:
    """Cause of most of a step's duration.

    Args:
        computing_s: time without exchanges, and the wait of the slowest worker.
        n_turns: workers that share the cores of one.
    """
    busy_s = step.busy_s
    served = {task for task, n_bytes in enumerate(planned.plan.server_bytes) if n_bytes}
    own_s = max(profile.step_s for profile in planned.profiles.values())

    def exchanging_s(*, servers: bool) -> float:
        numbers = [n for n, tasks in step.members.items() if (tasks[0] in served) is servers]
        # All cores share their busy time; computation is one thread's.
        return n_turns * max((cores * busy_s.get(core(n), 0.0) - own_s for n in numbers), default=0.0)

    seconds: dict[Limit, float] = {
        "computing": computing_s,
        "link": max(busy_s.get(way(n), 0.0) for n in step.members for way in (link_out, link_in)),
        "server": exchanging_s(servers=True),
        "exchanges": exchanging_s(servers=False),
    }
    limit = max(seconds, key=lambda cause: seconds[cause])
    return limit if seconds[limit] > _MOST_OF_A_STEP * step_s else "latency"


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicted:
    """Answer of `stratbench predict`.

    Attributes:
        run_dir: folder of the run with the profiles.
        changes: settings on top of the experiment, `dotted.path=value` each.
        notes: cases that could not be predicted, with the reason, and the run's speed.
        slowdown: factor on the probe's costs, see `harness.prediction.run_speed`.
        timelines: simulated steps for the page; empty if it is not requested.
    """

    predictions: Sequence[Prediction]
    probe: Probe
    probe_path: Path
    run_dir: Path
    changes: Sequence[str] = ()
    notes: Sequence[str] = ()
    timelines: Sequence[PredictedTimeline] = ()
    slowdown: float = 1.0

    def fastest(self) -> Iterator[str]:
        """Lines with the fastest strategy by number of workers, for each workload, batch, link and faults.

        A step of `single`, on one worker, is compared with those of every number of workers.
        """
        candidates = [p for p in self.predictions if p.strategy.name != CONTROL]
        groups: dict[tuple[str, int, float | None, tuple[Fault, ...]], list[Prediction]] = {}
        batches: dict[str, set[int]] = {}
        for p in candidates:
            batch = p.question.requested_batch
            batches.setdefault(p.workload, set()).add(batch)
            if not p.is_single:
                groups.setdefault((p.workload, batch, p.question.link_mbit, p.question.faults), []).append(p)
        for (workload, batch, rate, faults), rivals in groups.items():
            alone = [
                p
                for p in candidates
                if p.is_single and (p.workload, p.question.requested_batch) == (workload, batch)
            ]
            fastest = fastest_by_workers(
                (None if p.is_single else p.question.workers, p.title, p.examples_per_s)
                for p in (*rivals, *alone)
            )
            steps = ", then ".join(f"{title} from {n_of_workers(n_workers)}" for n_workers, title in fastest)
            size = f" with batch {batch}" if len(batches[workload]) > 1 else ""
            yield f"fastest, {workload}{size} {surroundings_text(rate, faults)}: {steps}"

    def cases(self) -> list[JsonValue]:
        """Predictions as JSON."""
        return [p.to_document() for p in self.predictions]

    def to_document(self) -> dict[str, JsonValue]:
        return {
            "cases": self.cases(),
            "probe": {"path": str(self.probe_path), **self.probe.to_document()},
            "slowdown": self.slowdown,
            "run_dir": str(self.run_dir),
            "notes": list(self.notes),
            "changes": list(self.changes),
        }


def surroundings_text(link_mbit: float | None, faults: Sequence[Fault]) -> str:
    """Link and slow workers of a prediction, as in `at 100 Mbit/s, worker 1 slow delay_ms=50`."""
    link = "without a limit" if link_mbit is None else f"at {link_mbit:,.10g} Mbit/s"
    return ", ".join((link, *(f"worker {fault.worker} {fault}" for fault in faults)))
