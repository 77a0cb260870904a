"""What nights differ by where nothing has changed: weekdays, and a spread that few odd nights move."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.ndimage import median_filter

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

LEAST_SIGMA = 0.003
"""Standard deviation of a night below which none is taken, of figures that hardly move."""
_NORMAL = 1.4826
"""Standard deviations in a median absolute deviation, of normal noise."""
_SHORT, _LONG = 15, 31
_OF_MEDIAN = 1.06
"""By how much the spread about a median of fifteen is too small."""
_NIGHTS_FOR_WEEKENDS, _NIGHTS_FOR_WEEKDAYS, _NIGHTS_FOR_CORRELATION = 35, 180, 60
_FREE_CORRELATION, _MOST_CORRELATION = 0.10, 0.6
_CORRELATION_LOST = 1.3
"""By how much the correlation of what is left of a median is too small."""
_WEEKEND = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """A series without its weekdays.

    Attributes:
        logs: [n], natural logarithms.
        sigma: [n], standard deviation of each night.
    """

    logs: FloatArray
    sigma: FloatArray


def cleaned(weekdays: IntArray, values: FloatArray, errors: FloatArray | None = None) -> Cleaned:
    """Logarithms of a series less what its weekdays add, and how far nights lie apart by chance.

    Args:
        weekdays: [n], of each night's date, 0 for a Monday.
        values: [n], positive.
        errors: [n], standard error of each logarithm by its own repeats; nights that are less sure than most
            count for less.
    """
    logs = np.log(values)
    if len(logs) >= _NIGHTS_FOR_WEEKENDS:
        logs = logs - _weekday_effect(weekdays, logs - rolling_median(logs, _SHORT))
    sigma = _spread(logs) * math.sqrt(_fewer_nights(logs))
    if errors is None:
        return Cleaned(logs=logs, sigma=np.full(len(logs), sigma))
    excess = np.maximum(0.0, errors**2 - float(np.median(errors)) ** 2)
    return Cleaned(logs=logs, sigma=np.sqrt(sigma**2 + excess))


def rolling_median(values: FloatArray, length: int) -> FloatArray:
    """Median of each night and those around it."""
    odd = min(length, (len(values) - 1) // 2 * 2 + 1)
    return np.asarray(median_filter(values, size=max(odd, 1), mode="nearest"), dtype=np.float64)


def _weekday_effect(weekdays: IntArray, rest: FloatArray) -> FloatArray:
    """Weekends against weekdays, and each weekday by itself once there is half a year."""
    groups = weekdays if len(rest) >= _NIGHTS_FOR_WEEKDAYS else (weekdays >= _WEEKEND).astype(np.int64)
    effect = np.zeros(len(rest))
    for group in np.unique(groups):
        effect[groups == group] = np.median(rest[groups == group])
    return effect


def _spread(logs: FloatArray) -> float:
    """Standard deviation of a night, of two robust estimates the larger."""
    about_median = _NORMAL * _OF_MEDIAN * float(np.median(np.abs(logs - rolling_median(logs, _SHORT))))
    between_nights = _NORMAL * float(np.median(np.abs(np.diff(logs)))) / math.sqrt(2)
    return max(about_median, between_nights, LEAST_SIGMA)


def _fewer_nights(logs: FloatArray) -> float:
    """By how much the variance of a mean is larger than of nights that tell nothing of each other."""
    if len(logs) < _NIGHTS_FOR_CORRELATION:
        return 1.0
    rest = logs - rolling_median(logs, _LONG)
    rest = np.where(np.abs(rest) < 2.5 * _spread(logs), rest, 0.0)
    lagged = float(rest[1:] @ rest[:-1]) / max(float(rest @ rest), 1e-12)
    correlation = min(max(lagged - _FREE_CORRELATION, 0.0) * _CORRELATION_LOST, _MOST_CORRELATION)
    return (1 + correlation) / (1 - correlation)
