"""Steps and drift of a nightly series.

A library proposes places, generously; a test of a step against smooth drift decides (`step_test`). The
weakest place is taken out and its neighbours are tested again, until all that are left are strong enough. A
model of levels alone would climb every drift in stairs.

Source:
    Arlot, Celisse and Harchaoui 2019, "A kernel multiple change-point algorithm via model selection", JMLR
    20, as in ruptures (Truong, Oudre and Vayatis 2020, Signal Processing 167).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import ruptures
from scipy.special import stdtrit

from reports.history.capped_fit import fit
from reports.history.noise import LEAST_SIGMA, Cleaned, FloatArray, IntArray, cleaned, rolling_median
from reports.history.step_test import Step, best_step

LEAST_NIGHTS = 11
CONFIRM = 3
_LEAST_EFFECT = 0.035
_GAIN, _GAIN_PENDING = 9.0, 6.0
_FEW_NIGHTS, _EXTRA_GAIN = 6, 3.0
"""On a side with fewer nights, two odd ones that agree could pay for a step: so much more is needed."""
_PROPOSAL_PENALTY = 14.0
_CLIP = 4.0
_BEFORE, _AFTER = 180, 120
_USUAL_NIGHTS, _FAR = 30, 3.5
EARLY_NIGHTS, _EARLY_LEVEL = 3, 0.001
"""Nights before a change that say what is usual, and how seldom one is seen where there is none."""
_ASIDE = 3
"""Nights on either side of a proposal that are tried as well."""
_DRIFT_NIGHTS, _DRIFT_GAIN = 40, 8.0
State = Literal["confirmed", "pending"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A step of a series.

    Attributes:
        place: index of its first night. night: that night itself.
        effect: what the logarithm changes by.
        gain: logarithm of how much more likely it is than smooth drift.
        n_nights: seen since, the first among them.
    """

    place: int
    night: int
    effect: float
    gain: float
    n_nights: int
    state: State


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What is found in a series.

    Attributes:
        drift: what the logarithm moves by in a night since the last change; 0 where that is next to nothing.
        sigma: standard deviation of a night's logarithm.
    """

    changes: tuple[Change, ...] = ()
    drift: float = 0.0
    sigma: float = 0.0


def analyse(
    nights: IntArray,
    values: FloatArray,
    errors: FloatArray | None = None,
    *,
    weekdays: IntArray | None = None,
    least_effect: float = _LEAST_EFFECT,
    confirm: int = CONFIRM,
) -> Analysis:
    """Find steps and drift.

    Args:
        nights: [n], days since a Monday, ascending, each once; there may be gaps.
        values, errors: as for `cleaned`.
        weekdays: [n], of the nights' dates, where these are others than `nights` says.
        least_effect: of the logarithm, below which a step is none.
        confirm: nights from a step on before it counts as confirmed.
    """
    if len(values) < LEAST_NIGHTS:
        return _early(nights, np.log(values), errors, least_effect)
    series = cleaned(nights % 7 if weekdays is None else weekdays, values, errors)
    steps = _steps(nights, series, least_effect)
    changes = tuple(
        _change(step, nights, confirm) for step in [*steps, *_newest(series, steps, least_effect)]
    )
    drift = _drift(nights, series, steps[-1].place if steps else 0, least_effect)
    return Analysis(changes=changes, drift=drift, sigma=float(np.median(series.sigma)))


def _steps(nights: IntArray, series: Cleaned, least_effect: float) -> list[Step]:
    places = _proposed(series)
    known: dict[tuple[int, int, int], Step] = {}
    while True:
        bounds = [0, *places, len(nights)]
        steps = []
        for before, place, after in zip(bounds, places, bounds[2:], strict=False):
            span = (max(before, place - _BEFORE), place, min(after, place + _AFTER))
            if span not in known:
                known[span] = _tested(nights, series, span, least_effect)
            steps.append(known[span])
        # The newest may still be pending.
        needed = [_GAIN] * (len(steps) - 1) + [_GAIN_PENDING]
        weak = [k for k, step in enumerate(steps) if step.gain < needed[k]]
        if not weak:
            return steps
        places.pop(min(weak, key=lambda k: steps[k].gain))


def _early(nights: IntArray, logs: FloatArray, errors: FloatArray | None, least_effect: float) -> Analysis:
    """A change of a young series: nights that all lie where a further night of those before hardly would."""
    for place in range(len(logs) - 1, EARLY_NIGHTS - 1, -1):
        before, apart = logs[:place], logs[place:] - float(np.mean(logs[:place]))
        own = 0.0 if errors is None else float(np.median(errors))
        sigma = max(float(np.std(before, ddof=1)), own, LEAST_SIGMA)
        unlikely = float(stdtrit(place - 1, 1 - _EARLY_LEVEL / 2)) * sigma * math.sqrt(1 + 1 / place)
        effect = float(np.mean(apart))
        is_far = np.abs(apart) > max(unlikely, least_effect)
        if is_far.all() and (np.sign(apart) == np.sign(effect)).all():
            step = Step(gain=_GAIN_PENDING, place=place, effect=effect)
            return Analysis(changes=(_change(step, nights, CONFIRM),), sigma=sigma)
    return Analysis()


def _newest(series: Cleaned, steps: Sequence[Step], least_effect: float) -> list[Step]:
    """A step of the last nights alone, too few for the test: all far off to one side."""
    since = steps[-1].place if steps else 0
    for n_nights in range(CONFIRM - 1, 0, -1):
        place = len(series.logs) - n_nights
        if place - since < LEAST_NIGHTS - 1:
            continue
        level = float(np.median(series.logs[max(since, place - _USUAL_NIGHTS) : place]))
        apart = series.logs[place:] - level
        effect = float(np.mean(apart))
        far = np.abs(apart) > np.maximum(_FAR * series.sigma[place:], least_effect)
        if far.all() and (np.sign(apart) == np.sign(effect)).all():
            return [Step(gain=_GAIN_PENDING, place=place, effect=effect)]
    return []


def _proposed(series: Cleaned) -> list[int]:
    """Places where the level may change, odd nights clipped."""
    smooth = rolling_median(series.logs, 21)
    rest = np.clip((series.logs - smooth) / series.sigma, -_CLIP, _CLIP)
    clipped = smooth / series.sigma.min() + rest
    proposal = ruptures.KernelCPD(kernel="linear", min_size=CONFIRM).fit(clipped[:, None])
    return [place for place in proposal.predict(pen=_PROPOSAL_PENALTY)[:-1] if place >= LEAST_NIGHTS - 1]


def _tested(nights: IntArray, series: Cleaned, span: tuple[int, int, int], least_effect: float) -> Step:
    """The best step about a place, of no gain where it is too small."""
    low, place, high = span
    tried = range(max(place - _ASIDE, low + CONFIRM), min(place + _ASIDE, high - CONFIRM) + 1)
    places = np.array(list(tried) or [place]) - low
    around = Cleaned(logs=series.logs[low:high], sigma=series.sigma[low:high])
    step = best_step(nights[low:high], around, places)
    found = step.place + low
    is_short = high - found < _FEW_NIGHTS or (low > 0 and found - low < _FEW_NIGHTS)
    gain = step.gain - (_EXTRA_GAIN if is_short else 0.0)
    return Step(
        gain=gain if abs(step.effect) >= least_effect else min(gain, 0.0), place=found, effect=step.effect
    )


def _change(step: Step, nights: IntArray, confirm: int) -> Change:
    n_nights = len(nights) - step.place
    return Change(
        place=step.place,
        night=int(nights[step.place]),
        effect=step.effect,
        gain=step.gain,
        n_nights=n_nights,
        state="confirmed" if step.gain >= _GAIN and n_nights >= confirm else "pending",
    )


def _drift(nights: IntArray, series: Cleaned, since: int, least_effect: float) -> float:
    """Slope since the last change, where a line is clearly better than a level and has come far enough."""
    since = max(since, len(nights) - _BEFORE - _AFTER)
    days, logs, sigma = nights[since:].astype(np.float64), series.logs[since:], series.sigma[since:]
    if len(days) < _DRIFT_NIGHTS:
        return 0.0
    level = np.ones_like(days)
    columns = np.column_stack([level, days - days.mean()]) / sigma[:, None]
    usual = (np.abs(logs - rolling_median(logs, 15)) < _FAR * sigma).astype(np.float64)[None]
    flat = fit(columns[None, :, :1], np.zeros(1), logs / sigma, usual)
    line = fit(columns[None], np.zeros(2), logs / sigma, usual)
    slope = float(line.coefficients[0, 1])
    has_drift = float(flat.costs[0] - line.costs[0]) > _DRIFT_GAIN
    return slope if has_drift and abs(slope) * (days[-1] - days[0]) >= least_effect else 0.0
