"""Fit of the costs of exchanges to measured steps.

Processor times of workers are linear in the costs: their fit is a robust linear one with costs of at least
zero. Latencies and the variation of exchanges are then fitted to the durations of the steps, by simulation.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from harness.prediction.costs import CollectiveCost, Costs, ValueCost
from harness.prediction.step_model import Machines, PlannedStep, processor_s, simulate_step

_Vector: TypeAlias = npt.NDArray[np.float64]
_BY_SIMULATION = ("round_s", "request_s", "latency_s", "exchange_variation")
"""Costs that are fitted to durations: latencies, and the variation of exchanges."""
_CPU_SCALE = 0.05
STEP_SCALE = 0.1
"""Relative errors of processor times and of steps beyond which an observation counts less (soft L1)."""
_TOWARDS_START = 0.005
"""Weight of the first guess of a cost, which decides where no observation does."""
_MIDDLE, _RELATIVE_DIFFERENCE = 10.0, 0.01
"""Unknowns are logarithms around a middle, so that a relative difference is one of 0.1 for all of them.

Smaller ones would not show the effect of latencies, because the simulation has thresholds.
"""
_NEGLIGIBLE = 1e-6
"""Part of the first guess of a cost that counts as none."""
_MAD_TO_SD = 1.4826


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """A measured step.

    Attributes:
        family: kind of its exchanges, such as `tcp` or `servers`.
        planned: the step, with profiles that are scaled to its workers' processor time without exchanges.
        step_s: median duration. cpu_s: processor time of each worker.
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
    names = [name for name in start.flat() if name.rpartition(".")[2] not in _BY_SIMULATION]
    costs = start.with_values(_processor_costs(observations, start, names))
    costs = _with_durations(observations, costs)
    errors: dict[str, list[float]] = {}
    for o in observations:
        errors.setdefault(o.family, []).append(math.log(o.step_s / predicted_s(o, costs)))
    return Fit(costs=costs, spreads={family: _spread(own) for family, own in errors.items()})


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


def _with_durations(observations: Sequence[Observation], costs: Costs) -> Costs:
    names = [name for name in costs.flat() if name.rpartition(".")[2] in _BY_SIMULATION]
    guesses = np.array([costs.flat()[name] for name in names])

    def at(logs: _Vector) -> Costs:
        return costs.with_values(dict(zip(names, (guesses * np.exp(logs)).tolist(), strict=True)))

    def errors(logs: _Vector) -> _Vector:
        return np.concatenate([log_errors(observations, at(logs)), _TOWARDS_START * logs])

    return at(fitted_logs(errors, len(names), most_evaluations=15))


def log_errors(observations: Sequence[Observation], costs: Costs) -> _Vector:
    """Logarithms of predicted ÷ measured durations."""
    return np.array([math.log(predicted_s(o, costs) / o.step_s) for o in observations])


def fitted_logs(errors: Callable[[_Vector], _Vector], n: int, *, most_evaluations: int) -> _Vector:
    """Logarithms of factors with the least errors, begun with factors of one.

    Args:
        errors: function of the logarithms, whose values count less beyond a tenth.
        n: number of factors.
    """

    def at(unknowns: _Vector) -> _Vector:
        return errors(unknowns - _MIDDLE)

    result = least_squares(
        at,
        np.full(n, _MIDDLE),
        loss="soft_l1",
        f_scale=STEP_SCALE,
        diff_step=[_RELATIVE_DIFFERENCE],
        max_nfev=most_evaluations,
    )
    return np.asarray(result.x - _MIDDLE)


def _spread(errors: Sequence[float]) -> float:
    """Standard deviation of errors around zero, by the median of their sizes."""
    return _MAD_TO_SD * statistics.median(map(abs, errors))
