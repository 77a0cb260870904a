"""Interval of a mean over repeats, from their own spread.

Source:
    Student 1908, "The probable error of a mean", Biometrika 6. Of strata: Cochran 1977, "Sampling
    techniques", chapter 5.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

CONFIDENCE = 0.95
SEQUENTIAL_CONFIDENCE = 0.97
"""Where repeats go on until intervals are narrow: looked at so often, these cover 95 % (decision 0042)."""
MIN_REPEATS_INTERVAL = 3
"""Below that, a spread is a guess."""
_MIN_OF_STRATUM = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedMean:
    """A mean over repeats.

    Attributes:
        error: its standard deviation. freedom: degrees of it. Both None where there are too few repeats.
    """

    value: float
    error: float | None = None
    freedom: float | None = None

    def half_width(self, confidence: float = CONFIDENCE) -> float | None:
        """Half of its interval; None where there are too few repeats.

        Args:
            confidence: coverage of the interval, in (0, 1).
        """
        if self.error is None or self.freedom is None:
            return None
        return float(stdtrit(self.freedom, 0.5 + confidence / 2)) * self.error

    def minus(self, other: RepeatedMean) -> RepeatedMean:
        """Its difference from the mean of other repeats.

        Source:
            Welch 1947, "The generalization of Student's problem when several different population variances
            are involved", Biometrika 34.
        """
        value = self.value - other.value
        if self.error is None or other.error is None or self.freedom is None or other.freedom is None:
            return RepeatedMean(value=value)
        error = math.hypot(self.error, other.error)
        if error == 0.0:
            return RepeatedMean(value=value, error=0.0, freedom=self.freedom + other.freedom)
        # Shares instead of variances: squares of tiny variances would underflow to 0 / 0.
        share, other_share = (self.error / error) ** 2, (other.error / error) ** 2
        freedom = 1.0 / (share**2 / self.freedom + other_share**2 / other.freedom)
        return RepeatedMean(value=value, error=error, freedom=freedom)


def repeated_mean(values: Sequence[float], strata: Sequence[Hashable] | None = None) -> RepeatedMean:
    """Mean of values, at least one; with strata the mean of theirs, and their differences are no spread.

    Args:
        values: one for each repeat, such as logarithms of ratios.
        strata: what each repeat shares with some others by design, such as its cores; left aside where a
            stratum has one repeat alone, which tells nothing of a spread.
    """
    groups: dict[Hashable, list[float]] = {}
    for stratum, value in zip([None] * len(values) if strata is None else strata, values, strict=True):
        groups.setdefault(stratum, []).append(value)
    if min(map(len, groups.values())) < _MIN_OF_STRATUM:
        groups = {None: list(values)}
    means = [math.fsum(group) / len(group) for group in groups.values()]
    value = math.fsum(means) / len(means)
    if len(values) < MIN_REPEATS_INTERVAL:
        return RepeatedMean(value=value)
    freedom = len(values) - len(groups)
    variance = sum(float(np.var(group)) * len(group) for group in groups.values()) / freedom
    error = math.sqrt(variance * sum(1 / len(group) for group in groups.values())) / len(groups)
    return RepeatedMean(value=value, error=error, freedom=freedom)
