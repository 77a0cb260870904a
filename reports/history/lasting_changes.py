"""Confirmed changes that persist: later nights do not revoke them before the level is back.

The analysis of each night starts afresh, so a step near the limit may be detected in one night and missed in
the next. This module repeats the analyses of the last month in order and keeps the steps that one of them
confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import numpy.typing as npt

from reports.history import CONFIRM
from reports.history.change_points import EARLY_NIGHTS, LEAST_NIGHTS, Analysis, Change
from reports.history.figures import METRICS
from reports.history.step_test import FloatArray, IntArray
from reports.history.store import Night, Series

RECENT_DAYS = 30
"""Days for which a confirmed, unacknowledged change counts; after them it is the new baseline."""
MOST_DRIFT = 0.10
"""Change of the logarithm from which on a drift is reported."""
_MOST_NIGHTS = 62
"""Most repeated analyses; if a date has many runs, the last ones."""
_SAME_NIGHTS = 7
"""Largest distance in nights between two places of the same step."""
_LEVEL_NIGHTS, _CLIP, _BACK = 30, 4.0, 5.0
"""Nights of a level; largest deviation of one night, and deviation by which a level is back, both in standard
deviations."""
_CLIP_EARLIER, _LEAST_GAIN = 3.46, 4.0
"""Largest deviation of one night in standard deviations, and the gain below which no step is confirmed."""
_BEFORE_LENGTHS = (10, 30, 90)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lasting:
    """Analysis with all changes that are still confirmed.

    Attributes:
        drift_is_new: true if its drift exceeds `MOST_DRIFT` for the first time in a month.
    """

    analysis: Analysis
    drift_is_new: bool


def lasting(until: Callable[[int], Analysis], days: IntArray, logs: FloatArray) -> Lasting:
    """Repeat the analyses of the last month up to the newest night.

    Args:
        until: function that returns the analysis of the first n nights.
        days: [n], dates of the nights, more than `EARLY_NIGHTS`.
        logs: [n], logarithms without the effect of weekdays.
    """
    newest = until(len(days))
    first = max(int(np.searchsorted(days, days[-1] - RECENT_DAYS)), len(days) - _MOST_NIGHTS, EARLY_NIGHTS)
    ends = np.arange(first, len(days))
    beyond = _beyond(newest)
    if not beyond and len(days) >= LEAST_NIGHTS:
        ends = ends[(ends < LEAST_NIGHTS) | _may_confirm(logs, newest.sigma, ends)]
    confirmed: tuple[Change, ...] = ()
    drift_was_beyond = False
    for end in ends.tolist():
        analysis = until(end)
        drift_was_beyond = drift_was_beyond or (beyond != 0 and _beyond(analysis) == beyond)
        confirmed = _confirmed(confirmed, analysis, logs[:end], days, is_first=end == first)
    confirmed = _confirmed(confirmed, newest, logs, days, is_first=first == len(days))
    pending = [change for change in newest.changes if change.state == "pending"]
    changes = sorted([*confirmed, *_others(pending, confirmed)], key=lambda change: change.place)
    return Lasting(
        analysis=replace(newest, changes=tuple(changes)), drift_is_new=beyond != 0 and not drift_was_beyond
    )


def _beyond(analysis: Analysis) -> int:
    """Sign of a drift beyond the limit, otherwise 0."""
    effect = 0.0 if analysis.drift is None else analysis.drift.effect
    return int(np.sign(effect)) if abs(effect) >= MOST_DRIFT else 0


def _confirmed(
    earlier: Sequence[Change], analysis: Analysis, logs: FloatArray, days: IntArray, *, is_first: bool
) -> tuple[Change, ...]:
    """Steps that are confirmed after one more analysis.

    Args:
        earlier: steps that were confirmed before it.
    """
    confirmed = []
    for change in (c for c in analysis.changes if c.state == "confirmed"):
        same = [old.confirmed_by for old in earlier if _is_same(old, change)]
        newest = len(logs) - 1
        is_new = not is_first and days[newest] - days[min(change.confirmed_by, newest)] <= RECENT_DAYS
        by = min(same) if same else newest if is_new else change.confirmed_by
        confirmed.append(replace(change, confirmed_by=by))
    stay = [
        replace(old, n_nights=len(logs) - old.place)
        for old in _others(earlier, confirmed)
        if not _is_drift(old, analysis) and not _is_back(old, logs, analysis.sigma)
    ]
    return tuple(sorted([*confirmed, *stay], key=lambda change: change.place))


def _others(changes: Sequence[Change], known: Sequence[Change]) -> list[Change]:
    return [change for change in changes if not any(_is_same(change, other) for other in known)]


def _is_same(one: Change, other: Change) -> bool:
    return abs(one.place - other.place) <= _SAME_NIGHTS and one.effect * other.effect > 0


def _is_drift(change: Change, analysis: Analysis) -> bool:
    """Return True if a step is part of a drift beyond the limit, which is detected later than its steps."""
    drift = analysis.drift
    if drift is None or not _beyond(analysis):
        return False
    return drift.place - _SAME_NIGHTS <= change.place and drift.effect * change.effect > 0


def _is_back(change: Change, logs: FloatArray, sigma: float) -> bool:
    """True if the last nights are significantly closer to the level before a change than to the one after."""
    before = logs[max(0, change.place - _LEVEL_NIGHTS) : change.place]
    since = np.sign(change.effect) * (logs[change.place :] - float(np.median(before)))
    for start in range(CONFIRM, len(since) - CONFIRM + 1):
        last = since[start:]
        middle = float(np.median(since[:start])) / 2
        below = np.clip((middle - last) / sigma, -_CLIP, _CLIP)
        if below.sum() / np.sqrt(len(last) * (1 + len(last) / len(before))) >= _BACK:
            return True
    return False


def _may_confirm(logs: FloatArray, sigma: float, ends: IntArray) -> npt.NDArray[np.bool_]:
    """Mask of analyses that may have confirmed a step, by cheap bounds; most series have none."""
    n = len(logs)
    gains = np.zeros(n + 1)
    for place in range(max(CONFIRM, int(ends[0]) - RECENT_DAYS), n - CONFIRM) if len(ends) else ():
        for length in _BEFORE_LENGTHS:
            before = logs[max(0, place - length) : place]
            level = median(before.tolist())  # ten times as fast as NumPy's for so few values
            apart = np.clip((logs[place:] - level) / sigma, -_CLIP_EARLIER, _CLIP_EARLIER)
            counts = np.arange(1, len(apart) + 1)
            gain = np.cumsum(apart) ** 2 / counts * len(before) / (counts + len(before)) / 2
            gains[place + CONFIRM :] = np.maximum(gains[place + CONFIRM :], gain[CONFIRM - 1 :])
    return np.asarray(gains[ends] >= _LEAST_GAIN)


def decisive(
    series: Series,
    analysis: Analysis,
    night: Night,
    n_known: int,
    *,
    more_is_better: bool,
) -> Change | None:
    """Change that decides a verdict: the largest remaining loss, else the newest change.

    Args:
        n_known: number of nights, from the first on, whose changes are acknowledged.
        more_is_better: True if a larger figure is better.
    """
    recent = [
        change
        for change in analysis.changes
        if change.state == "pending"
        or night.day - int(series.days[min(change.confirmed_by, len(series.days) - 1)]) <= RECENT_DAYS
    ]
    confirmed = [change for change in recent if change.state == "confirmed"]
    unknown = [change for change in confirmed if change.place >= n_known]
    losses = _losses(unknown, sign=1 if more_is_better else -1)
    if sum(lost for _, lost in losses) >= METRICS[series.subject.metric].least_effect:
        return max(losses, key=lambda loss: loss[1])[0]
    return recent[-1] if recent else None


def _losses(changes: Sequence[Change], *, sign: int) -> list[tuple[Change, float]]:
    """Changes for the worse, and the rest of each: a gain cancels the newest loss before it first.

    Args:
        sign: 1 if more is better, -1 if less is better.
    """
    losses: list[tuple[Change, float]] = []
    for change in changes:
        gain = sign * change.effect
        if gain < 0:
            losses.append((change, -gain))
        while gain > 0 and losses:
            newest, lost = losses.pop()
            if lost > gain:
                losses.append((newest, lost - gain))
            gain -= lost
    return losses
