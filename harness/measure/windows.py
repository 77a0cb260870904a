"""Windows of steps: length and order, the end of the warm-up, step times (slowest worker, percentiles)."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from harness.measure.machine_use import CoreUse
from harness.records.conditions import TimedUnit
from harness.records.costs import INPUT_BOUND_SHARE, InputWait
from harness.records.outcome import StepSeconds
from harness.records.steps_file import Steps
from harness.worker.jobs.training import TimedSteps
from strategies.plan.execution import Execution

LEAD_STEPS = 2
"""Uncounted steps at the start of a window, because another case has filled the caches."""


def lead_steps(period: int) -> int:
    """Uncounted steps before a window's counted ones, whole periods.

    Args:
        period: steps after which the kinds of steps repeat.
    """
    return math.ceil(LEAD_STEPS / period) * period


def timed_unit(execution: Execution) -> TimedUnit:
    """Unit of timing under this execution, see `Window.counted_s`.

    Steps of a loop have equal shares of its time, so that each of them is a unit.
    """
    if not execution.waits_for_all:
        return "window"
    return "period" if execution.period > 1 else "step"


def window_steps(step_s: float, *, window_s: float, least: int, period: int = 1) -> int:
    """Counted steps of a window, whole periods.

    Args:
        step_s: seconds of one step.
        window_s: intended length of the window, in seconds.
        least: least number of steps.
    """
    wanted = max(least, math.ceil(window_s / step_s) if step_s > 0 else least)
    return math.ceil(wanted / period) * period


def balanced_orders(n_cases: int, seed: str) -> Iterator[Sequence[int]]:
    """Endless orders in which cases take their windows, one for each round.

    Over as many rounds as there are cases, or twice as many if their number is odd, every case is in each
    position equally often, and follows each of the others equally often.

    Args:
        n_cases: at least one.
    Source:
        Williams 1949, "Experimental designs balanced for the estimation of residual effects of treatments",
        Australian Journal of Scientific Research A 2.
    """
    draw = random.Random(seed)  # noqa: S311 - an order, not a secret
    while n_cases:
        names = draw.sample(range(n_cases), n_cases)
        zigzag = [-(place // 2) - 1 if place % 2 else place // 2 for place in range(n_cases)]
        square = [[names[(row + step) % n_cases] for step in zigzag] for row in range(n_cases)]
        if n_cases % 2:
            square += [line[::-1] for line in square]
        draw.shuffle(square)
        yield from square


Seconds: TypeAlias = npt.NDArray[np.float64]
WarmUp: TypeAlias = int | Literal["auto"]

CHUNK_STEPS = 10
MAX_CHUNKS = 5
MAX_WARMUP_STEPS = CHUNK_STEPS * MAX_CHUNKS
_OUTLIER_DEVIATIONS = 4.0
_MAD_TO_DEVIATION = 1.4826
_SMALLEST_DEVIATION = 1e-3  # of the median: smaller differences are due to the clock's resolution


def transient_steps(step_s: Seconds) -> int:
    """Number of first steps that are still part of the warm-up.

    The count d ≤ n/2 that minimises the marginal standard error of the steps after it,
    sum (x - mean)² / (n - d)². Times are first clipped to four deviations (by the median absolute deviation
    of the later half) above the median of the later half, so that one late interruption does not pass for an
    end of warm-up. The smallest d wins a tie.

    Args:
        step_s: [n_steps], seconds of each step.
    Source:
        White 1997, "An effective truncation heuristic for bias reduction in simulation output",
        Simulation 69 (6), the MSER rule.
    """
    n_steps = len(step_s)
    if n_steps < 2:
        return 0
    later = step_s[n_steps // 2 :]
    middle = float(np.median(later))
    spread = _MAD_TO_DEVIATION * float(np.median(np.abs(later - middle)))
    resolution = _SMALLEST_DEVIATION * middle
    deviation = max(spread, resolution)
    clipped = np.minimum(step_s, middle + _OUTLIER_DEVIATIONS * deviation)
    # Without the resolution, rounding decides when times are nearly equal.
    errors = [(float(np.var(clipped[d:])) + resolution**2) / (n_steps - d) for d in range(n_steps // 2 + 1)]
    return int(np.argmin(errors))


def is_settled(step_s: Seconds) -> bool:
    """True if the steps so far show the end of the warm-up, and are not still getting faster.

    A result at the rule's limit, half of the steps, is inconclusive.
    """
    return len(step_s) >= CHUNK_STEPS and transient_steps(step_s) < len(step_s) // 2


def step_seconds(step_s: Seconds, *, n_steps: int) -> StepSeconds:
    """Distribution of steps' times.

    Args:
        step_s: [n_units], mean step of each timed unit in seconds, see `Window.counted_s`.
        n_steps: steps of all units.
    """
    p50, p90, p99 = (float(value) for value in np.percentile(step_s, (50, 90, 99)))
    return StepSeconds(n=n_steps, mean=float(np.mean(step_s)), p50=p50, p90=p90, p99=p99)


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Consecutive steps, the first `n_lead` of them not counted; number -1 is not counted at all."""

    number: int
    n_lead: int
    rows: tuple[TimedSteps, ...]
    use: CoreUse | None = None

    @property
    def n_steps(self) -> int:
        return len(self.rows[0].times.start_s)

    @property
    def slowest_s(self) -> Floats:
        """Time of each step on its slowest worker; [n_steps]."""
        longest_s: Floats = np.max(self._each_s(), axis=0)
        return longest_s

    @property
    def n_counted(self) -> int:
        return self.n_steps - self.n_lead

    def counted_s(self, unit: int | None) -> Floats:
        """Mean counted step of each timed unit on its slowest worker; [n_units].

        The maximum is taken of means. Taken of single steps, it would count a delay twice: on the late
        worker, and later on those that wait for it.

        Args:
            unit: steps of a unit; None: all counted steps are one.
        """
        return _longest_means(self._each_s()[:, self.n_lead :], unit)

    def _each_s(self) -> Floats:
        """Time of each step on each worker; [n_workers, n_steps]."""
        return np.stack([row.times.end_s - row.times.start_s for row in self.rows])

    @property
    def input_s(self) -> Floats | None:
        """Seconds until workers had each step's batch; [n_workers, n_steps], None if batches were staged."""
        waits = [row.times.input_s for row in self.rows if row.times.input_s is not None]
        return np.stack(waits) if len(waits) == len(self.rows) else None

    @property
    def wall_s(self) -> float:
        """Seconds from the first counted step to the last, on the slowest worker."""
        return max(float(row.times.end_s[-1] - row.times.start_s[self.n_lead]) for row in self.rows)


def _longest_means(each_s: Floats, unit: int | None) -> Floats:
    """Mean of each unit of steps, on the worker with the largest.

    Args:
        each_s: [n_workers, n_steps]. unit: steps of a unit; None: all steps are one.
    """
    units_s = each_s.reshape(len(each_s), -1, unit or each_s.shape[1])
    longest_s: Floats = units_s.mean(axis=2).max(axis=0)
    return longest_s


def spread_indices(n: int, most: int) -> npt.NDArray[np.int64]:
    """At most `most` evenly spaced indices out of n, the first and the last included."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(np.int64))


def everything(windows: Sequence[Window]) -> tuple[Floats, Floats, Floats, Floats]:
    """Concatenate the steps of all windows.

    Returns:
        Starts and ends, [n_workers, n_steps]; losses, [n_workers, n_steps, most replicas]; weights of the
        losses, [n_workers, most replicas]. Where a worker has fewer replicas, both are 0.
    """
    first = windows[0].rows
    most = max(len(row.weights) for row in first)
    weights = np.stack([_padded(np.asarray(row.weights, np.float64), most) for row in first])
    start_s = np.concatenate([np.stack([row.times.start_s for row in w.rows]) for w in windows], axis=1)
    end_s = np.concatenate([np.stack([row.times.end_s for row in w.rows]) for w in windows], axis=1)
    losses = np.concatenate(
        [np.stack([_padded(row.times.losses, most) for row in w.rows]) for w in windows], axis=1
    )
    return start_s, end_s, losses, weights


def steps_of_workers(windows: Sequence[Window]) -> Steps:
    """Every step of every worker, with the mean loss of its own examples, or its replicas' sum."""
    start_s, end_s, losses, weights = everything(windows)
    means = np.einsum("wsl,wl->ws", losses, weights) / np.sum(weights, axis=1, keepdims=True)
    n_workers, n_steps = start_s.shape
    lengths = [window.n_steps for window in windows]
    numbers = np.repeat(np.asarray([window.number for window in windows], dtype=np.int32), lengths)
    uncounted = np.concatenate(
        [
            np.arange(n) < (n if window.number < 0 else window.n_lead)
            for n, window in zip(lengths, windows, strict=True)
        ]
    )
    waits = [window.input_s for window in windows]
    known = [wait_s for wait_s in waits if wait_s is not None]
    return Steps(
        worker=np.repeat(np.arange(n_workers, dtype=np.int32), n_steps),
        step=np.tile(np.arange(n_steps, dtype=np.int32), n_workers),
        start_s=start_s.ravel(),
        end_s=end_s.ravel(),
        loss=means.ravel(),
        warmup=np.tile(uncounted, n_workers),
        window=np.tile(numbers, n_workers),
        input_s=np.concatenate(known, axis=1).ravel() if len(known) == len(waits) else None,
    )


def _padded(values: Floats, length: int) -> Floats:
    missing = length - values.shape[-1]
    return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)])


def input_wait(windows: Sequence[Window], step_s: float, unit: int | None = 1) -> InputWait | None:
    """Waiting time of steps for batches of a pipeline; None if batches were staged.

    Args:
        windows: counted windows, at least one.
        step_s: mean of their steps.
        unit: steps of a timed unit, see `Window.counted_s`.
    """
    waits = [window.input_s for window in windows]
    known = [
        wait_s[:, window.n_lead :]
        for window, wait_s in zip(windows, waits, strict=True)
        if wait_s is not None
    ]
    if len(known) < len(windows):
        return None
    each_s = np.concatenate(known, axis=1)
    mean_s = float(np.concatenate([_longest_means(wait_s, unit) for wait_s in known]).mean())
    share = mean_s / step_s
    return InputWait(
        mean=mean_s,
        share=share,
        mean_of_workers=tuple(map(float, each_s.mean(axis=1))),
        bound=share >= INPUT_BOUND_SHARE,
    )
