"""The change of a series that its verdict is by."""

from __future__ import annotations

from collections.abc import Sequence

from reports.history.change_points import Analysis, Change
from reports.history.figures import METRICS
from reports.history.lasting_changes import RECENT_DAYS
from reports.history.store import Night, Series


def decisive(
    series: Series,
    analysis: Analysis,
    night: Night,
    n_known: int,
    *,
    more_is_better: bool,
) -> Change | None:
    """The change that a verdict is by: first the largest loss that has not been made up for.

    Args:
        n_known: how many nights, from the first on, have changes that are known.
        more_is_better: of the metric.
    """
    recent = [
        change
        for change in analysis.changes
        if change.state == "pending"
        or night.day - int(series.days[min(change.confirmed_by, len(series.days) - 1)]) <= RECENT_DAYS
    ]
    confirmed = [change for change in recent if change.state == "confirmed"]
    untold = [change for change in confirmed if change.place >= n_known]
    losses = _losses(untold, sign=1 if more_is_better else -1)
    if sum(lost for _, lost in losses) >= METRICS[series.subject.metric].least_effect:
        return max(losses, key=lambda loss: loss[1])[0]
    return recent[-1] if recent else None


def _losses(changes: Sequence[Change], *, sign: int) -> list[tuple[Change, float]]:
    """Changes for the worse, and what is left of each: a gain makes up for the newest before it first.

    Args:
        sign: 1 where more is better, -1 where less is.
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
