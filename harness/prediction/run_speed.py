"""Speed of the machines of a run, relative to the hour of their probe, from the run's measured steps."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from harness.prediction.costs import Costs
from harness.prediction.fit import STEP_SCALE, Observation, fitted_logs, log_errors
from harness.prediction.measured_cases import is_predicted
from harness.prediction.observations import observations, shares_cores
from harness.prediction.probe import Probe, machine_of
from harness.prediction.profiled_workload import ProfiledWorkload
from harness.records.record import Record
from harness.records.stored_run import StoredRun

_SPEED_SCALE = 0.2
"""Usual relative change of a shared machine's speed from one hour to another."""
_MOST_CASES = 20
"""Most measured cases that show the speed of a run; of more, every second, third or further one."""
_MOST_EVALUATIONS = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSpeed:
    """Speed of a run.

    Attributes:
        slowdown: factor on the probe's costs.
        n_cases: measured cases that it was fitted to.
    """

    slowdown: float = 1.0
    n_cases: int = 0

    def of(self, probe: Probe) -> Probe:
        """Probe with costs at this speed."""
        return probe if self.n_cases == 0 else replace(probe, costs=probe.costs.scaled(self.slowdown))

    def note(self, run: StoredRun) -> str | None:
        """Sentence on the factor; None if it changes nothing."""
        if round(self.slowdown, 2) == 1.0:
            return None
        cases = f"{self.n_cases} measured case{'' if self.n_cases == 1 else 's'}"
        return (
            f"costs of exchanges are {self.slowdown:.2f} times the probe's, fitted to {cases} of {run.path}"
        )


def speed_of(run: StoredRun, workloads: Sequence[ProfiledWorkload], probe: Probe) -> RunSpeed:
    """Speed of the machines of a run.

    Shared machines can be a fifth slower in some hours than in others. Only cases that can be predicted
    count, if they ran on the probe's machine with a core for each worker.
    """
    measured = list(_measured(run, workloads, probe))
    measured = measured[:: max(1, math.ceil(len(measured) / _MOST_CASES))]
    if not measured:
        return RunSpeed()
    return RunSpeed(slowdown=slowdown(measured, probe.costs), n_cases=len(measured))


def _measured(run: StoredRun, workloads: Sequence[ProfiledWorkload], probe: Probe) -> Iterator[Observation]:
    """Measured cases, each with the mean duration of its repeats."""
    by_case: dict[str, list[Record]] = {}
    for record in run.records:
        if is_predicted(record) and not shares_cores(record) and machine_of(record) == probe.identity:
            by_case.setdefault(record.case, []).append(record)
    for records in by_case.values():
        own = list(observations(replace(run, records=tuple(records)), workloads))
        if own and not probe.missing(own[0].planned.flows):
            yield replace(own[0], step_s=statistics.fmean(o.step_s for o in own))


def slowdown(measured: Sequence[Observation], costs: Costs) -> float:
    """Factor on all costs with which measured steps are predicted best.

    It is drawn towards one: a factor of 1.2 is as unlikely as one step that is predicted 10 % too long.
    """

    def errors(logs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        factor = math.exp(logs[0])
        return np.append(log_errors(measured, costs.scaled(factor)), STEP_SCALE / _SPEED_SCALE * logs[0])

    return math.exp(fitted_logs(errors, 1, most_evaluations=_MOST_EVALUATIONS)[0])
