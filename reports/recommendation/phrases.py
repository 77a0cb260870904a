"""Ratios of rates and of bytes in words."""

from __future__ import annotations

from reports.quantities import limits, times
from reports.recommendation.sent_bytes import layer_of, sent_by
from reports.rows import Row
from reports.statistics import Ratio


def rate_phrase(figure: Ratio, of: str) -> str:
    """A ratio of rates with its interval and n."""
    inside = f"95 % interval {limits(figure.interval)}" if figure.interval else "no interval"
    counts = f"n={figure.n}" if figure.n == figure.n_baseline else f"n={figure.n} against {figure.n_baseline}"
    return f"{times(figure.value)} ({inside}, {counts}) the rate of {of}"


def bytes_phrase(row: Row, other: Row) -> str:
    """By how much a row sends fewer bytes than another, or more.

    Returns:
        Nothing unless both send something, neither figure is a bound, and repeats show the difference.
    """
    layer = layer_of((row, other))
    own, others = sent_by(row, layer), sent_by(other, layer)
    if own is None or others is None or own.is_bound or others.is_bound:
        return ""
    if min(own.mean.low, others.mean.low) <= 0:
        return ""
    if not (own.is_surely_less(others) or others.is_surely_less(own)):
        return ""
    how = " by prediction" if layer == "payload" else ""
    share = own.mean.value / others.mean.value
    if share >= 2:
        return f", but sends {times(share)} the bytes{how}"
    percent = round(100 * abs(1 - share))
    if not percent:
        return ""
    return (
        f", {'and' if share < 1 else 'but'} sends {percent} % {'fewer' if share < 1 else 'more'} bytes{how}"
    )
