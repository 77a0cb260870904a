"""Steps and drift of a nightly series, and the rules that make a step pending or confirmed.

1. Kernel change-point detection proposes more places than there are steps.
2. Each place is tested: a step against smooth drift without a step (`reports.history.step_test`). Models of
   constant levels alone would fit a drift as many small steps.
3. The weakest place below the limit is removed and its neighbours are tested again, until all are above it.

Source:
    Arlot, Celisse and Harchaoui 2019, "A kernel multiple change-point algorithm via model selection", JMLR
    20, as in ruptures (Truong, Oudre and Vayatis 2020, Signal Processing 167).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import ruptures
from scipy.special import stdtr

from reports.history import CONFIRM
from reports.history.step_test import (
    Cleaned,
    FloatArray,
    IntArray,
    Step,
    best_step,
    cleaned,
    fit,
    rolling_median,
)

LEAST_NIGHTS = 11
_LEAST_EFFECT = 0.035
_GAIN, _GAIN_PENDING = 9.0, 6.0
_FEW_NIGHTS, _EXTRA_GAIN = 6, 3.0
"""Additional gain of a step with fewer nights on a side, where two outliers could look like a step."""
_PROPOSAL_PENALTY = 14.0
_CLIP = 4.0
_BEFORE, _AFTER = 180, 120
_USUAL_NIGHTS, _FAR = 30, 3.5
EARLY_NIGHTS, _EARLY_GAIN_PENDING = 3, 6.9
"""Nights before a change of a new series, and the gain of a pending one: p = 0.001."""
USUAL_NOISE, _USUAL_WEIGHT, _NOISE_OF_ERROR, _MOST_USUAL = 0.02, 6, 2.0, 2.0
"""Noise of a new series: usual noise of a night; its weight in nights; noise as a multiple of the error over
repeats; limit as a multiple of the metric's usual noise."""
_ASIDE = 3
"""Nights on either side of a proposed place that are tested as well."""
_DRIFT_NIGHTS, _DRIFT_GAIN, _DRIFT_BEGINS = 40, 8.0, 15
"""Fewest nights of a drift, its least gain over a constant level, and distance of possible first nights."""
_LEAST_PENALTY = 1e-6
"""Penalty of a free coefficient, so that a model without an effect of it stays solvable."""
State = Literal["confirmed", "pending"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A step of a series.

    Attributes:
        place: index of its first night.
        night: day of that night.
        effect: change of the logarithm.
        gain: log-likelihood ratio of the step to smooth drift.
        n_nights: number of nights since, including the first one.
        confirmed_by: index of the earliest night that can confirm it.
    """

    place: int
    night: int
    effect: float
    gain: float
    n_nights: int
    confirmed_by: int
    state: State


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A level that moves every night.

    Attributes:
        place: index of its first night.
        slope: change of the logarithm per day.
        effect: change of the logarithm from the first night to the last one.
    """

    place: int
    slope: float
    effect: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """Steps and drift of a series.

    Attributes:
        drift: drift since the last change; None if it is too small.
        sigma: standard deviation of a night's logarithm.
    """

    changes: tuple[Change, ...] = ()
    drift: Drift | None = None
    sigma: float = 0.0


def analyse(
    nights: IntArray,
    values: FloatArray,
    errors: FloatArray | None = None,
    *,
    weekdays: IntArray | None = None,
    least_effect: float = _LEAST_EFFECT,
    usual_noise: float = USUAL_NOISE,
    confirm: int = CONFIRM,
) -> Analysis:
    """Detect steps and drift.

    Args:
        nights: [n], days since a Monday, ascending and distinct; gaps are allowed.
        values: [n], positive. errors: [n], standard error of each logarithm, see `cleaned`.
        weekdays: [n], of the nights' dates, if they differ from those of `nights`.
        least_effect: smallest change of the logarithm that counts as a step.
        usual_noise: standard deviation of a night's logarithm, for a new series.
        confirm: fewest nights of a confirmed step.
    """
    if len(values) < LEAST_NIGHTS:
        own = 0.0 if errors is None else _NOISE_OF_ERROR * float(np.median(errors))
        noise = min(max(usual_noise, own), _MOST_USUAL * usual_noise)
        return _early(nights, np.log(values), noise, least_effect, confirm)
    series = cleaned(nights % 7 if weekdays is None else weekdays, values, errors)
    steps = _steps(nights, series, least_effect)
    drift = _drift(nights, series, steps, least_effect, confirm)
    all_steps = [*steps, *_newest(nights, series, steps, drift, least_effect)]
    return Analysis(
        changes=tuple(_change(step, nights, confirm) for step in all_steps),
        drift=drift,
        sigma=float(np.median(series.sigma)),
    )


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


def _early(nights: IntArray, logs: FloatArray, noise: float, least_effect: float, confirm: int) -> Analysis:
    """Step of a new series, by a moderated t test: all nights after it lie beyond all nights before.

    Source:
        Smyth 2004, "Linear models and empirical Bayes methods", Stat. Appl. Genet. Mol. Biol. 3(1), 3.
    """
    best = Analysis()
    for place in range(EARLY_NIGHTS, len(logs)):
        before, since = logs[:place], logs[place:]
        effect = float(since.mean() - before.mean())
        sign = math.copysign(1.0, effect)
        if abs(effect) < least_effect or (sign * since).min() <= (sign * before).max():
            continue
        freedom = _USUAL_WEIGHT + len(logs) - 2
        squares = _USUAL_WEIGHT * noise**2 + float(before.var() * len(before) + since.var() * len(since))
        sigma = math.sqrt(squares / freedom)
        t = abs(effect) / (sigma * math.sqrt(1 / len(before) + 1 / len(since)))
        gain = -math.log(max(2 * float(stdtr(freedom, -t)), sys.float_info.min))
        if gain >= max([_EARLY_GAIN_PENDING, *(change.gain for change in best.changes)]):
            step = Step(gain=gain, place=place, effect=effect)
            best = Analysis(changes=(_change(step, nights, confirm),), sigma=sigma)
    return best


def _newest(
    nights: IntArray, series: Cleaned, steps: Sequence[Step], drift: Drift | None, least_effect: float
) -> list[Step]:
    """Step of the last nights, too few for the test: all are outliers on one side of the level or drift."""
    since = steps[-1].place if steps else 0
    logs = series.logs
    if drift is not None:
        logs = logs - drift.slope * np.maximum(nights - nights[drift.place], 0)
    for n_nights in range(CONFIRM - 1, 0, -1):
        place = len(logs) - n_nights
        if place - since < EARLY_NIGHTS:
            continue
        level = float(np.median(logs[max(since, place - _USUAL_NIGHTS) : place]))
        apart = logs[place:] - level
        effect = float(np.mean(apart))
        far = np.abs(apart) > np.maximum(_FAR * series.sigma[place:], least_effect)
        if far.all() and (np.sign(apart) == np.sign(effect)).all():
            return [Step(gain=_GAIN_PENDING, place=place, effect=effect)]
    return []


def _proposed(series: Cleaned) -> list[int]:
    """Places where the level may change, with outliers clipped."""
    smooth = rolling_median(series.logs, 21)
    rest = np.clip((series.logs - smooth) / series.sigma, -_CLIP, _CLIP)
    clipped = smooth / series.sigma.min() + rest
    proposal = ruptures.KernelCPD(kernel="linear", min_size=CONFIRM).fit(clipped[:, None])
    return [int(place) for place in proposal.predict(pen=_PROPOSAL_PENALTY)[:-1]]


def _tested(nights: IntArray, series: Cleaned, span: tuple[int, int, int], least_effect: float) -> Step:
    """Best step near a place; its gain is 0 if the step is too small."""
    low, place, high = span
    nearby = range(max(place - _ASIDE, low + CONFIRM), min(place + _ASIDE, high - CONFIRM) + 1)
    places = np.array(list(nearby) or [place]) - low
    around = Cleaned(logs=series.logs[low:high], sigma=series.sigma[low:high])
    step = best_step(nights[low:high], around, places)
    best_place = step.place + low
    is_short = min(high - best_place, best_place - low) < _FEW_NIGHTS
    gain = step.gain - (_EXTRA_GAIN if is_short else 0.0)
    return Step(
        gain=gain if abs(step.effect) >= least_effect else min(gain, 0.0),
        place=best_place,
        effect=step.effect,
    )


def _change(step: Step, nights: IntArray, confirm: int) -> Change:
    n_nights = len(nights) - step.place
    return Change(
        place=step.place,
        night=int(nights[step.place]),
        effect=step.effect,
        gain=step.gain,
        n_nights=n_nights,
        confirmed_by=step.place + confirm - 1,
        state="confirmed" if step.gain >= _GAIN and n_nights >= confirm else "pending",
    )


def _drift(
    nights: IntArray, series: Cleaned, steps: Sequence[Step], least_effect: float, confirm: int
) -> Drift | None:
    """Line from one night on that fits significantly better than a constant level, and than a single step."""
    confirmed = [step.place for step in steps if _change(step, nights, confirm).state == "confirmed"]
    since = max([*confirmed, len(nights) - _BEFORE - _AFTER, 0])
    days, logs, sigma = nights[since:].astype(np.float64), series.logs[since:], series.sigma[since:]
    if len(days) < _DRIFT_NIGHTS:
        return None
    usual = (np.abs(logs - rolling_median(logs, 15)) < _FAR * sigma).astype(np.float64)
    begins = np.arange(0, len(days) - _DRIFT_NIGHTS + 1, _DRIFT_BEGINS)
    lines = np.maximum(days - days[begins][:, None], 0.0)
    stepped = [(np.arange(len(days)) >= step.place - since) for step in steps if step.place > since]
    shapes = np.concatenate([lines, np.array([*stepped, np.zeros(len(days))], dtype=np.float64)])
    columns = np.stack([np.ones_like(shapes), shapes], axis=2) / sigma[:, None]
    penalty = np.array([0.0, _LEAST_PENALTY])
    scaled = (logs - float(np.median(logs))) / sigma
    fits = fit(columns, penalty, scaled, np.broadcast_to(usual, shapes.shape))
    best = int(np.argmin(fits.costs[: len(lines)]))
    slope = float(fits.coefficients[best, 1])
    effect = slope * float(lines[best, -1])
    *of_steps, level = fits.costs[len(lines) :]
    is_better = level - fits.costs[best] > _DRIFT_GAIN and fits.costs[best] < min(of_steps, default=level)
    if not is_better or abs(effect) < least_effect:
        return None
    return Drift(place=since + int(begins[best]), slope=slope, effect=effect)
