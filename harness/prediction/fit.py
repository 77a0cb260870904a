"""Fit of the costs of exchanges to measured steps.

Processor times of workers are linear in the costs: their fit is a robust linear one with costs of at least
zero. Latencies are then fitted to the durations of the steps, by simulation.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from harness.prediction.costs import CollectiveCost, Costs, ValueCost
from harness.prediction.step_model import Machines, PlannedStep, processor_s, simulate_step

_Vector: TypeAlias = npt.NDArray[np.float64]
_LATENCIES = ("round_s", "request_s", "latency_s", "spread")
_CPU_SCALE = 0.05
_STEP_SCALE = 0.1
"""Relative errors of processor times and of steps beyond which an observation counts less (soft L1)."""
_TOWARDS_START = 0.005
"""Weight of the first guess of a latency, which decides where no observation does."""
_DIFFERENCE = 0.1
"""Difference of logarithms of latencies that shows their effect, in spite of thresholds in the simulation."""
_SPEED_SCALE = 0.2
"""Usual relative change of a shared machine's speed from one hour to another."""
_NEGLIGIBLE = 1e-6
"""Part of the first guess of a cost that counts as none."""
_MAD_TO_SD = 1.4826


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """A measured step.

    Attributes:
        family: kind of its exchanges, such as `tcp` or `servers`.
        planned: the step, with profiles that are scaled to its workers' processor time without exchanges.
        step_s: mean duration. cpu_s: processor time of each worker.
        idle_s: time in which workers without exchanges wait for each other in a step.
    """

    family: str
    planned: PlannedStep
    machines: Machines
    step_s: float
    cpu_s: Sequence[float]
    idle_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """Fitted costs.

    Attributes:
        spreads: family → standard deviation of the logarithm of measured ÷ predicted time of a step.
    """

    costs: Costs
    spreads: Mapping[str, float]


def fitted(observations: Sequence[Observation]) -> Fit:
    """Fit all costs that the observations depend on.

    Raises:
        ValueError: there are no observations.
    """
    if not observations:
        raise ValueError("costs can be fitted to one measured step or more, got none")
    start = _start(observations)
    names = [name for name in start.flat() if name.rpartition(".")[2] not in _LATENCIES]
    costs = start.with_values(_processor_costs(observations, start, names))
    costs = _with_latencies(observations, costs)
    errors: dict[str, list[float]] = {}
    for o in observations:
        errors.setdefault(o.family, []).append(math.log(o.step_s / predicted_s(o, costs)))
    return Fit(costs=costs, spreads={family: _spread(own) for family, own in errors.items()})


def slowdown(observations: Sequence[Observation], costs: Costs) -> float:
    """Factor by which exchanges take longer than their costs, so that measured steps are predicted best.

    Few steps change it less: a factor of 1.2 is as likely as a step that is predicted 10 % too long.
    """

    def errors(logs: _Vector) -> _Vector:
        own = costs.scaled(math.exp(logs[0] - 1.0))
        steps = [math.log(predicted_s(o, own) / o.step_s) for o in observations]
        return np.array([*steps, _STEP_SCALE / _SPEED_SCALE * (logs[0] - 1.0)])

    result = least_squares(
        errors, np.ones(1), loss="soft_l1", f_scale=_STEP_SCALE, diff_step=[_DIFFERENCE], max_nfev=6
    )
    return math.exp(result.x[0] - 1.0)


def predicted_s(o: Observation, costs: Costs) -> float:
    """Predicted duration of an observed step, in seconds."""
    return simulate_step(o.planned, costs, o.machines).step_s + o.idle_s


def _start(observations: Iterable[Observation]) -> Costs:
    """First guess, with costs of everything that the observed plans use."""
    flows = [flow for o in observations for flow in o.planned.flows]
    transports = dict.fromkeys(flow.transport for flow in flows if flow.transport != "grpc")
    compressors = dict.fromkeys(flow.compressor.name for flow in flows if flow.compressor is not None)
    return Costs(
        collectives={name: CollectiveCost() for name in transports},
        codecs={name: ValueCost() for name in compressors},
    )


def _processor_costs(
    observations: Sequence[Observation], start: Costs, names: Sequence[str]
) -> dict[str, float]:
    guesses = np.array([start.flat()[name] for name in names])
    nothing = start.with_values(dict.fromkeys(start.flat(), 0.0))
    rows, wanted = [], []
    for o in observations:
        measured_s = np.array(o.cpu_s)
        computing_s = np.array(processor_s(o.planned, nothing))
        columns = [
            np.array(processor_s(o.planned, nothing.with_values({name: guess}))) - computing_s
            for name, guess in zip(names, guesses, strict=True)
        ]
        rows.append(np.array(columns).T / measured_s[:, None])
        wanted.append((measured_s - computing_s) / measured_s)
    matrix, share = np.concatenate(rows), np.concatenate(wanted)

    def errors(factors: _Vector) -> _Vector:
        return np.concatenate([matrix @ factors - share, _TOWARDS_START * (factors - 1.0)])

    result = least_squares(
        errors,
        np.ones(len(names)),
        bounds=(0.0, np.inf),
        loss="soft_l1",
        f_scale=_CPU_SCALE,
    )
    factors = np.where(result.x > _NEGLIGIBLE, result.x, 0.0)
    return dict(zip(names, (factors * guesses).tolist(), strict=True))


def _with_latencies(observations: Sequence[Observation], costs: Costs) -> Costs:
    names = [name for name in costs.flat() if name.rpartition(".")[2] in _LATENCIES]
    guesses = np.array([costs.flat()[name] for name in names])

    def at(logs: _Vector) -> Costs:
        return costs.with_values(dict(zip(names, (guesses * np.exp(logs - 1.0)).tolist(), strict=True)))

    def errors(logs: _Vector) -> _Vector:
        tried = at(logs)
        steps = [math.log(predicted_s(o, tried) / o.step_s) for o in observations]
        return np.concatenate([steps, _TOWARDS_START * (logs - 1.0)])

    # Differences are parts of the unknowns: 1 is the first guess, and e times the guess is 2.
    result = least_squares(
        errors, np.ones(len(names)), loss="soft_l1", f_scale=_STEP_SCALE, diff_step=[_DIFFERENCE], max_nfev=15
    )
    return at(result.x)


def _spread(errors: Sequence[float]) -> float:
    """Standard deviation of errors around zero, by the median of their sizes."""
    return _MAD_TO_SD * statistics.median(map(abs, errors))
