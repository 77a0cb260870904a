"""Timeouts of workers: derived from the model and earlier steps, so that hangs end soon."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness.errors import UsageError
from harness.provision.protocols import USUAL_START, StartOptions

if TYPE_CHECKING:
    from strategies.plan.faults import Fault
    from strategies.plan.schema import StepSummary

# The first step of a process traces, optimises and allocates, and has no predecessor to estimate from.
FIRST_STEP_S = 180.0
CAPTURE_S = 300.0
COMMAND_S = 900.0
PREPARE_S = 1800.0
SETUP_S = 120.0
SERVER_S = 60.0
SAVE_S = 600.0
LINK_S = 30.0
_UNKNOWN_STEP_S = 10.0
_CONSTANT_S = 30.0
_FACTOR = 5.0
RECENT_PERIODS = 10
"""Number of the latest periods from which the time of later steps is predicted."""
# Upper limits on a busy core, to bring a node from a capture to a session, and a byte to a variable.
_NODE_S = 5e-3
_BYTE_S = 1e-7
_FACTORS = (0.1, 1000.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Limits of a command's requests to workers.

    Attributes:
        factor: the user's factor on every limit.
        model_s: seconds for the size of the model, for requests that handle all of it; 0 before capture.
        delay_s: longest delay of a step by faults of one worker.
    """

    factor: float = 1.0
    model_s: float = 0.0
    delay_s: float = 0.0

    def for_model(self, summary: "StepSummary", n_copies: int) -> "Timeouts":
        """Limits for a captured step.

        Args:
            n_copies: copies of the step in one process's graph, one per replica.
        """
        n_bytes = sum(variable.bytes for variable in summary.variables)
        return replace(self, model_s=n_copies * (_NODE_S * summary.n_nodes + _BYTE_S * n_bytes))

    def for_faults(self, faults: "Sequence[Fault]") -> "Timeouts":
        """Limits for workers with faults, which may begin in any step."""
        by_worker: dict[int, float] = {}
        for fault in faults:
            by_worker[fault.worker] = by_worker.get(fault.worker, 0.0) + fault.delay_ms / 1000
        return replace(self, delay_s=max(by_worker.values(), default=0.0))

    @property
    def start(self) -> StartOptions:
        return replace(
            USUAL_START,
            preload_s=self.factor * USUAL_START.preload_s,
            fork_s=self.factor * USUAL_START.fork_s,
        )

    @property
    def link_s(self) -> float:
        """Limit for a measurement of links, without the time for the bytes at their rate."""
        return self.factor * LINK_S

    @property
    def capture_s(self) -> float:
        return self.factor * CAPTURE_S

    @property
    def command_s(self) -> float:
        """Limit for a reference, a check or a transformation in one process."""
        return self.factor * (COMMAND_S + self.model_s)

    @property
    def prepare_s(self) -> float:
        """Limit for a case's capture, reference and checks together, before workers start."""
        return self.factor * (PREPARE_S + self.model_s)

    @property
    def setup_s(self) -> float:
        """Limit for workers' programs, variables and batches, when sent, loaded or collected."""
        return self.factor * (SETUP_S + self.model_s)

    @property
    def server_s(self) -> float:
        return self.factor * SERVER_S

    @property
    def save_s(self) -> float:
        return self.factor * (SAVE_S + self.model_s)

    def steps_s(self, n_steps: int, known_s: Sequence[float], *, period: int = 1) -> float:
        """Limit for a number of steps.

        Args:
            known_s: seconds of earlier steps on the slowest worker; may be empty.
            period: steps after which the kinds of steps repeat.
        """
        n_whole = -(-n_steps // period) * period
        late_s = n_steps * self.delay_s
        last = len(known_s)
        periods = [known_s[stop - period : stop] for stop in range(last, period - 1, -period)]
        if not periods:
            # Later steps may be the slowest.
            known = _FACTOR * n_whole * max(known_s, default=0.0)
            unknown = FIRST_STEP_S + self.model_s + _UNKNOWN_STEP_S * (n_steps - 1)
            return late_s + self.factor * (unknown + known)
        step_s = statistics.median(map(statistics.fmean, periods[:RECENT_PERIODS]))
        return late_s + self.factor * (_CONSTANT_S + _FACTOR * n_whole * step_s)


USUAL = Timeouts()


def timeouts(factor: float) -> Timeouts:
    """Usual limits times a factor.

    Raises:
        UsageError: the factor is out of range.
    """
    least, most = _FACTORS
    if not least <= factor <= most:
        raise UsageError(
            f"must be a number from {least:g} to {most:g}, got {factor:g}", field="timeout-factor"
        )
    return Timeouts(factor=factor)
