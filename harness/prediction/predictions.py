"""Predictions of steps at other numbers of workers and other links."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.canonical import JsonValue
from harness.errors import UsageError
from harness.experiment.cases import CONTROL
from harness.experiment.chosen_strategy import choose
from harness.experiment.references import StrategyRef
from harness.prediction.observations import BYTES_PER_MBIT, ProfiledWorkload, family, planned_step
from harness.prediction.probe import Probe
from harness.prediction.step_model import (
    Machines,
    PlannedStep,
    SimulatedStep,
    core,
    link_in,
    link_out,
    simulate_step,
)
from strategies.errors import StrategyError
from strategies.topology import Topology

Limit = Literal["computing", "link", "server", "exchanges", "latency"]
_MOST_OF_A_STEP = 0.4
"""Part of a step from which on something limits it; below, latencies do."""
_TWO_SIDED_95 = 1.96
LEAST_SPREAD = 0.05
"""Least standard deviation of a prediction's logarithm: repeats of one case differ by as much."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """Conditions of a prediction.

    Attributes:
        batch_size: global batch.
        link_mbit: limit of each worker's link; None without one.
    """

    workers: int
    replicas: int
    batch_size: int
    link_mbit: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """Predicted step.

    Attributes:
        low_s, high_s: 95 % interval of the duration, by the errors of the probe's own steps.
        busiest_bytes: bytes that the busiest task sends or receives per step.
        memory_bytes: variables and slots in the memory of the worker with the most, a server's included.
        limited_by: cause of most of the duration; `exchanges` is their processor time on workers.
        extrapolated: quantities beyond those that were measured.
    """

    workload: str
    strategy: StrategyRef
    params: dict[str, JsonValue]
    question: Question
    step_s: float
    low_s: float
    high_s: float
    payload_bytes: int
    busiest_bytes: int
    memory_bytes: int
    limited_by: Limit
    extrapolated: tuple[str, ...] = ()

    @property
    def examples_per_s(self) -> float:
        return self.question.batch_size / self.step_s

    def to_document(self) -> dict[str, JsonValue]:
        question = self.question
        return {
            "workload": self.workload,
            "strategy": self.strategy.name,
            "strategy_params": self.params,
            "workers": question.workers,
            "replicas": question.replicas,
            "batch_size": question.batch_size,
            "link_mbit": question.link_mbit,
            "step_s": self.step_s,
            "interval": {"low": self.low_s, "high": self.high_s},
            "examples_per_s": self.examples_per_s,
            "payload_bytes_per_step": self.payload_bytes,
            "busiest_bytes_per_step": self.busiest_bytes,
            "memory_bytes": self.memory_bytes,
            "limited_by": self.limited_by,
            "extrapolated": list(self.extrapolated),
        }


def predict(
    workload: ProfiledWorkload, strategy: StrategyRef, question: Question, probe: Probe
) -> Prediction:
    """Predict a step.

    Raises:
        UsageError: the strategy has no plan of ours or cannot run there, or the probe lacks its transport.
    """
    chosen = choose(strategy)
    if chosen.strategy.runner != "graph":
        raise UsageError(
            f"must be one that stratbench plans, got {strategy.name}, whose exchanges TensorFlow makes; "
            "measure it with `stratbench run`",
            field="strategies",
        )
    try:
        topology = Topology(
            replicas_per_task=(question.replicas,) * question.workers, batch_size=question.batch_size
        )
        planned = planned_step(workload, chosen, topology)
    except StrategyError as error:
        raise UsageError(str(error), field="strategies") from error
    _require_simulated(strategy, planned)
    probe.require(planned.flows)
    rate = question.link_mbit
    machines = Machines(cores=probe.cores, link_bytes_per_s=None if rate is None else rate * BYTES_PER_MBIT)
    simulated = simulate_step(planned, probe.costs, machines)
    examples = max(planned.profiles)
    step_s = simulated.step_s + workload.waiting_s(examples)
    known = probe.spreads.get(family(planned.flows), max(probe.spreads.values(), default=0.0))
    spread = max(LEAST_SPREAD, known if planned.flows else 0.0)
    factor = math.exp(_TWO_SIDED_95 * spread)
    plan = planned.plan
    busiest = plan.busiest
    return Prediction(
        workload=workload.title,
        strategy=strategy,
        params=dict(plan.strategy_params),
        question=question,
        step_s=step_s,
        low_s=step_s / factor,
        high_s=step_s * factor,
        payload_bytes=plan.payload_bytes_per_step,
        busiest_bytes=0 if busiest is None else busiest.busiest_bytes,
        memory_bytes=plan.worker_bytes + max(plan.server_bytes, default=0),
        limited_by=_limit(planned, simulated, step_s),
        extrapolated=(
            *(() if all(map(workload.is_between, planned.profiles)) else ("examples per worker",)),
            *probe.beyond(planned.flows),
        ),
    )


def _require_simulated(strategy: StrategyRef, planned: PlannedStep) -> None:
    """Refuse plans with work or an order of updates that the simulation does not know.

    Raises:
        UsageError: the plan has a rule, micro-batches, or updates that do not wait for all workers.
    """
    execution = planned.plan.execution
    reason = None
    if planned.plan.aggregation is not None:
        reason = "a rule of robust aggregation"
    elif not execution.waits_for_all and planned.flows:
        reason = "updates that do not wait for all workers"
    elif execution.micro_batches > 1:
        reason = "micro-batches"
    if reason is not None:
        raise UsageError(
            f"must be one whose steps are simulated, got {strategy} with {reason}; measure it with "
            "`stratbench run`",
            field="strategies",
        )


def _limit(planned: PlannedStep, simulated: SimulatedStep, step_s: float) -> Limit:
    """Cause of most of a step's duration."""
    busy_s = simulated.busy_s
    served = {task for task, n_bytes in enumerate(planned.plan.server_bytes) if n_bytes}
    computing_s = max(profile.step_s for profile in planned.profiles.values())

    def exchanging_s(*, servers: bool) -> float:
        own = [n for n, tasks in simulated.members.items() if bool(served & set(tasks)) is servers]
        return max((busy_s.get(core(n), 0.0) - computing_s for n in own), default=0.0)

    seconds: dict[Limit, float] = {
        "computing": computing_s,
        "link": max(busy_s.get(way(n), 0.0) for n in simulated.members for way in (link_out, link_in)),
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
        notes: strategies that could not be predicted, with the reason.
    """

    predictions: tuple[Prediction, ...]
    workloads: Mapping[str, ProfiledWorkload]
    probe: Probe
    probe_path: Path
    run_dir: Path
    notes: tuple[str, ...] = ()

    def efficiency(self, prediction: Prediction) -> float:
        """Part of a step that it would take without exchanges."""
        question, workload = prediction.question, self.workloads[prediction.workload]
        examples = -(-question.batch_size // question.workers)
        return (workload.profile(examples).step_s + workload.waiting_s(examples)) / prediction.step_s

    def crossings(self) -> Iterator[str]:
        """Lines with the fastest strategy by number of workers, one for each workload and link."""
        candidates = (p for p in self.predictions if p.strategy.name != CONTROL)
        ordered = sorted(candidates, key=lambda p: p.question.workers)
        groups = dict.fromkeys((p.workload, p.question.link_mbit) for p in ordered)
        for workload, rate in groups:
            own = [p for p in ordered if (p.workload, p.question.link_mbit) == (workload, rate)]
            fastest: list[tuple[int, StrategyRef]] = []
            for n_workers in dict.fromkeys(p.question.workers for p in own):
                best = min((p for p in own if p.question.workers == n_workers), key=lambda p: p.step_s)
                if not fastest or fastest[-1][1] != best.strategy:
                    fastest.append((n_workers, best.strategy))
            link = "without a limit" if rate is None else f"at {rate:g} Mbit/s"
            steps = ", then ".join(f"{strategy} from {n_workers} workers" for n_workers, strategy in fastest)
            yield f"fastest, {workload} {link}: {steps}"

    def to_document(self) -> dict[str, JsonValue]:
        return {
            "cases": [prediction.to_document() for prediction in self.predictions],
            "probe": {"path": str(self.probe_path), **self.probe.to_document()},
            "run_dir": str(self.run_dir),
            "notes": list(self.notes),
        }
