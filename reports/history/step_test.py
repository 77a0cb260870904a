"""Whether a series makes a step at a night: models with one against models without, drift in both."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import numpy as np

from reports.history.capped_fit import CAP, fit
from reports.history.noise import Cleaned, FloatArray, IntArray, rolling_median

_LEVEL_PRECISION = 1e-6
_SLOPE_SD, _BEND_SD = 0.0005, 0.0002
"""What the logarithm of a drifting series moves by in a night, and that slope by from knot to knot."""
_KNOT_NIGHTS = 15
_STEEP_SLOPE_SD = 0.005
"""The same for a straight line: without bends, even a steep one fits no step that is not in its middle."""
_DRIFT_PRICE = 6.0
"""Log odds against drift, before anything is seen."""
_BESIDE = 30
"""Nights before and after a step that say which are odd ones, to begin with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The best step of several places.

    Attributes:
        gain: logarithm of how much more likely the nights are with it than without.
        place: index of its first night. effect: what the logarithm changes by.
    """

    gain: float
    place: int
    effect: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nights:
    """Nights around a candidate."""

    logs: FloatArray
    sigma: FloatArray

    @property
    def scaled(self) -> FloatArray:
        """Logarithms about their median, in standard deviations."""
        return (self.logs - float(np.median(self.logs))) / self.sigma

    def near(self, level: FloatArray | float) -> FloatArray:
        """Which lie near a level, 1 or 0 each."""
        return (((self.logs - level) / self.sigma) ** 2 / 2 < CAP).astype(np.float64)

    def levels(self, place: int) -> tuple[float, float]:
        """Medians of the nights before a step and from it on."""
        before, after = self.logs[max(0, place - _BESIDE) : place], self.logs[place : place + _BESIDE]
        # NumPy's takes ten times as long for so few.
        return median(before.tolist()), median(after.tolist())


def best_step(nights: IntArray, series: Cleaned, places: IntArray) -> Step:
    """The step at one of some places that explains the nights best, against there being none.

    Args:
        nights: [n], days. series: of these.
        places: indices of nights, ascending, none of them the first.
    """
    found = _Nights(logs=series.logs, sigma=series.sigma)
    middle = int(places[len(places) // 2])
    base, penalty = _drift(nights, int(nights[middle]))
    indices = np.arange(len(nights))
    jumps = np.stack([(indices >= place) / found.sigma for place in places])[:, :, None]
    starts = _starts(found, middle)
    by_place = np.stack(
        [found.near(np.where(indices >= place, *reversed(found.levels(int(place))))) for place in places]
    )
    scaled, scaled_base = found.scaled, base / found.sigma[:, None]
    without, with_step = np.inf, Step(gain=-np.inf, place=middle, effect=0.0)
    least = np.inf
    steep = np.array([_LEVEL_PRECISION, _STEEP_SLOPE_SD**-2])
    for ridge, price in ((penalty[:1], 0.0), (penalty, _DRIFT_PRICE), (steep, _DRIFT_PRICE)):
        columns = scaled_base[:, : len(ridge)]
        still = fit(_repeated(columns, len(starts)), ridge, scaled, starts)
        without = min(without, float(still.costs.min()) + price)
        stepped = np.concatenate([_repeated(columns, len(places)), jumps], axis=2)
        fits = fit(stepped, np.append(ridge, _LEVEL_PRECISION), scaled, by_place)
        best = int(np.argmin(fits.costs))
        if fits.costs[best] + price < least:
            least = float(fits.costs[best]) + price
            effect = float(fits.coefficients[best, -1])
            with_step = Step(gain=0.0, place=int(places[best]), effect=effect)
    return Step(gain=without - least, place=with_step.place, effect=with_step.effect)


def _drift(nights: IntArray, origin: int) -> tuple[FloatArray, FloatArray]:
    """Columns of a level and of a slope that changes from knot to knot, and their penalties."""
    days = (nights - origin).astype(np.float64)
    knots = np.arange(days[0] + _KNOT_NIGHTS, days[-1] - _KNOT_NIGHTS / 2, _KNOT_NIGHTS)
    bends = [np.maximum(days - knot, 0.0) for knot in knots]
    penalty = [_LEVEL_PRECISION, _SLOPE_SD**-2, *([_BEND_SD**-2] * len(knots))]
    return np.column_stack([np.ones_like(days), days, *bends]), np.array(penalty)


def _starts(found: _Nights, middle: int) -> FloatArray:
    """Nights that models without a step may begin with: all, or those near one level or another."""
    before, after = found.levels(middle)
    near = [found.near(level) for level in (rolling_median(found.logs, 15), before, after)]
    return np.stack([np.ones_like(found.logs), *near])


def _repeated(columns: FloatArray, count: int) -> FloatArray:
    return np.broadcast_to(columns, (count, *columns.shape))
