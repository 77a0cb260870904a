"""End of warm-up, and the distribution of the steps after it."""

from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from harness.records.facts.outcome import StepSeconds

Seconds: TypeAlias = npt.NDArray[np.float64]
WarmUp: TypeAlias = int | Literal["auto"]

CHUNK_STEPS = 10
MAX_CHUNKS = 5
MAX_WARMUP_STEPS = CHUNK_STEPS * MAX_CHUNKS
_OUTLIER_DEVIATIONS = 4.0
_MAD_TO_DEVIATION = 1.4826
_SMALLEST_DEVIATION = 1e-3  # of the median: below this, differences are the clock's


def transient_steps(step_s: Seconds) -> int:
    """Find how many of the first steps are still warming up.

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
    # Without the resolution, rounding decides where times are all but equal.
    errors = [(float(np.var(clipped[d:])) + resolution**2) / (n_steps - d) for d in range(n_steps // 2 + 1)]
    return int(np.argmin(errors))


def is_settled(step_s: Seconds) -> bool:
    """Whether the steps so far show the end of the warm-up, and not only a series that still falls.

    A truncation at the limit of the rule, half the series, is no finding.
    """
    return len(step_s) >= CHUNK_STEPS and transient_steps(step_s) < len(step_s) // 2


def step_seconds(step_s: Seconds) -> StepSeconds:
    """Distribution of steps' times.

    Args:
        step_s: [n_steps], seconds of each on its slowest worker.
    """
    p50, p90, p99 = (float(value) for value in np.percentile(step_s, (50, 90, 99)))
    return StepSeconds(n=len(step_s), mean=float(np.mean(step_s)), p50=p50, p90=p90, p99=p99)
