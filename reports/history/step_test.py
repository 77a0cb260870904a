"""Likelihood-ratio test of a step in a nightly series against smooth drift without a step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt
from scipy.ndimage import median_filter

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

LEAST_SIGMA = 0.003
"""Least standard deviation of a night, for figures that hardly change."""
_NORMAL = 1.4826
"""Standard deviation ÷ median absolute deviation of normal noise."""
_SHORT, _LONG = 15, 31
_OF_MEDIAN = 1.06
"""Correction of the spread around a rolling median of fifteen nights, which is too small."""
_NIGHTS_FOR_WEEKENDS, _NIGHTS_FOR_WEEKDAYS, _NIGHTS_FOR_CORRELATION = 35, 180, 60
_FREE_CORRELATION, _MOST_CORRELATION = 0.10, 0.6
_CORRELATION_LOST = 1.3
"""Correction of the autocorrelation of residuals of a rolling median, which is too small."""
_WEEKEND = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """A series without the effect of weekdays.

    Attributes:
        logs: [n], natural logarithms.
        sigma: [n], standard deviation of each night.
    """

    logs: FloatArray
    sigma: FloatArray

    @property
    def scaled(self) -> FloatArray:
        return (self.logs - float(np.median(self.logs))) / self.sigma

    def near(self, level: FloatArray | float) -> FloatArray:
        return (((self.logs - level) / self.sigma) ** 2 / 2 < CAP).astype(np.float64)

    def levels(self, place: int) -> tuple[float, float]:
        """Medians of the nights before a step and from it on."""
        before, after = self.logs[max(0, place - _BESIDE) : place], self.logs[place : place + _BESIDE]
        # Ten times as fast as NumPy's for so few values.
        return median(before.tolist()), median(after.tolist())


def cleaned(weekdays: IntArray, values: FloatArray, errors: FloatArray | None = None) -> Cleaned:
    """Logarithms of a series without the effect of weekdays, and the standard deviation of each night.

    Args:
        weekdays: [n], weekday of each night's date, 0 for a Monday.
        values: [n], positive.
        errors: [n], standard error of each logarithm over its repeats; nights with a larger error than most
            have less weight.
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
    """Median of each night and its neighbours."""
    odd = min(length, (len(values) - 1) // 2 * 2 + 1)
    return np.asarray(median_filter(values, size=max(odd, 1), mode="nearest"), dtype=np.float64)


def _weekday_effect(weekdays: IntArray, rest: FloatArray) -> FloatArray:
    groups = weekdays if len(rest) >= _NIGHTS_FOR_WEEKDAYS else (weekdays >= _WEEKEND).astype(np.int64)
    effect = np.zeros(len(rest))
    for group in np.unique(groups):
        effect[groups == group] = np.median(rest[groups == group])
    return effect


def _spread(logs: FloatArray) -> float:
    """Standard deviation of a night: the larger of two robust estimates."""
    about_median = _NORMAL * _OF_MEDIAN * float(np.median(np.abs(logs - rolling_median(logs, _SHORT))))
    between_nights = _NORMAL * float(np.median(np.abs(np.diff(logs)))) / math.sqrt(2)
    return max(about_median, between_nights, LEAST_SIGMA)


def _fewer_nights(logs: FloatArray) -> float:
    """Variance of a mean relative to independent nights: (1 + r) / (1 - r), r the lag-1 autocorrelation."""
    if len(logs) < _NIGHTS_FOR_CORRELATION:
        return 1.0
    rest = logs - rolling_median(logs, _LONG)
    rest = np.where(np.abs(rest) < 2.5 * _spread(logs), rest, 0.0)
    lagged = float(rest[1:] @ rest[:-1]) / max(float(rest @ rest), 1e-12)
    correlation = min(max(lagged - _FREE_CORRELATION, 0.0) * _CORRELATION_LOST, _MOST_CORRELATION)
    return (1 + correlation) / (1 - correlation)


CAP = 6.0
"""Largest cost of a night, half a squared deviation: an outlier is 3.5 standard deviations away."""
_ROUNDS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Fits:
    """Several fits of the same nights.

    Attributes:
        costs: [b], half the sum of capped squares and of the penalty: negative log-likelihoods.
        apart: [b], half the sum of squares, outliers included in full.
        coefficients: [b, p].
    """

    costs: FloatArray
    apart: FloatArray
    coefficients: FloatArray


def fit(designs: FloatArray, penalty: FloatArray, logs: FloatArray, included: FloatArray) -> Fits:
    """Fit models by penalised least squares without outliers, until the set of outliers stays the same.

    Args:
        designs: [b, n, p], each row divided by its night's standard deviation.
        penalty: [p], weights of the squared coefficients: 1 / expected variance.
        logs: [n], divided in the same way.
        included: [b, n], 1 for nights of the first iteration, 0 for others.
    """
    ridge, weights = np.diag(penalty), included
    for _ in range(_ROUNDS):
        weighted = designs * weights[:, :, None]
        normal = np.swapaxes(weighted, 1, 2) @ designs + ridge
        coefficients = np.linalg.solve(normal, (weighted * logs[:, None]).sum(1)[:, :, None])[:, :, 0]
        halves = (logs - (designs @ coefficients[:, :, None])[:, :, 0]) ** 2 / 2
        fitting = (halves < CAP).astype(np.float64)
        if (fitting == weights).all():
            break
        weights = fitting
    costs = np.minimum(halves, CAP).sum(1) + (coefficients**2 * penalty).sum(1) / 2
    return Fits(costs=costs, apart=halves.sum(1), coefficients=coefficients)


_LEVEL_PRECISION = 1e-6
_SLOPE_SD, _BEND_SD = 0.0005, 0.0002
"""Standard deviations of a drift's slope per night, and of the slope's change at a knot."""
_KNOT_NIGHTS = 15
_STEEP_SLOPE_SD = 0.005
"""The same for a straight line, which cannot imitate a step even if it is steep."""
_DRIFT_PRICE = 6.0
"""Prior log-odds against drift."""
_EQUAL = 1e-6
"""Largest difference of costs that are equal except for rounding."""
_BESIDE = 30
"""Nights before and after a step from which the first outliers are determined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Best step of several places.

    Attributes:
        gain: log-likelihood ratio of the nights with and without the step.
        place: index of its first night.
        effect: change of the logarithm.
    """

    gain: float
    place: int
    effect: float


def best_step(nights: IntArray, series: Cleaned, places: IntArray) -> Step:
    """Best step at one of several places, with its gain over no step.

    An outlier far from both levels costs the cap on either side of the step, so that places around it are
    equally likely. It then belongs to the closer level: its likelihood is higher there for each distribution
    of outliers whose density falls with the distance.

    Args:
        nights: [n], days.
        series: cleaned series of these nights.
        places: indices of nights, ascending, without the first.
    """
    middle = int(places[len(places) // 2])
    base, penalty = _drift(nights, int(nights[middle]))
    indices = np.arange(len(nights))
    jumps = np.stack([(indices >= place) / series.sigma for place in places])[:, :, None]
    starts = _starts(series, middle)
    by_place = np.stack(
        [series.near(np.where(indices >= place, *reversed(series.levels(int(place))))) for place in places]
    )
    scaled, scaled_base = series.scaled, base / series.sigma[:, None]
    without, with_step = np.inf, Step(gain=-np.inf, place=middle, effect=0.0)
    least = np.inf
    steep = np.array([_LEVEL_PRECISION, _STEEP_SLOPE_SD**-2])
    for ridge, price in ((penalty[:1], 0.0), (penalty, _DRIFT_PRICE), (steep, _DRIFT_PRICE)):
        columns = scaled_base[:, : len(ridge)]
        still = fit(_repeated(columns, len(starts)), ridge, scaled, starts)
        without = min(without, float(still.costs.min()) + price)
        stepped = np.concatenate([_repeated(columns, len(places)), jumps], axis=2)
        fits = fit(stepped, np.append(ridge, _LEVEL_PRECISION), scaled, by_place)
        alike = np.flatnonzero(fits.costs <= fits.costs.min() + _EQUAL)
        best = int(alike[np.argmin(fits.apart[alike])])
        if fits.costs[best] + price < least:
            least = float(fits.costs[best]) + price
            effect = float(fits.coefficients[best, -1])
            with_step = Step(gain=0.0, place=int(places[best]), effect=effect)
    return Step(gain=without - least, place=with_step.place, effect=with_step.effect)


def _drift(nights: IntArray, origin: int) -> tuple[FloatArray, FloatArray]:
    """Columns of a level and of a slope that changes at knots, and their penalties."""
    days = (nights - origin).astype(np.float64)
    knots = np.arange(days[0] + _KNOT_NIGHTS, days[-1] - _KNOT_NIGHTS / 2, _KNOT_NIGHTS)
    bends = [np.maximum(days - knot, 0.0) for knot in knots]
    penalty = [_LEVEL_PRECISION, _SLOPE_SD**-2, *([_BEND_SD**-2] * len(knots))]
    return np.column_stack([np.ones_like(days), days, *bends]), np.array(penalty)


def _starts(series: Cleaned, middle: int) -> FloatArray:
    """Nights of the first iteration for models without a step: all, or those near one of three levels."""
    before, after = series.levels(middle)
    near = [series.near(level) for level in (rolling_median(series.logs, 15), before, after)]
    return np.stack([np.ones_like(series.logs), *near])


def _repeated(columns: FloatArray, count: int) -> FloatArray:
    return np.broadcast_to(columns, (count, *columns.shape))
