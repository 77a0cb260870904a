"""Interval of a mean over repeats, from their own spread.

Source:
    Student 1908, "The probable error of a mean", Biometrika 6.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

CONFIDENCE = 0.95
SEQUENTIAL_CONFIDENCE = 0.97
"""Where repeats go on until intervals are narrow: looked at so often, these cover 95 % (decision 0042)."""
MIN_REPEATS_INTERVAL = 3
"""Below that, a spread is a guess."""


def half_width(values: Sequence[float], *, confidence: float = CONFIDENCE) -> float | None:
    """Half of the interval of the mean; None where there are too few values.

    Args:
        values: one for each repeat, such as logarithms of ratios.
        confidence: coverage of the interval, in (0, 1).
    """
    n = len(values)
    if n < MIN_REPEATS_INTERVAL:
        return None
    return float(stdtrit(n - 1, 0.5 + confidence / 2)) * standard_error(values)


def standard_error(values: Sequence[float]) -> float:
    """Standard deviation of the mean; of at least two values."""
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))
