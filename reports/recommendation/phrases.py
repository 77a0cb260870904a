"""Ratios of rates and of bytes in words."""

from __future__ import annotations

from reports.quantities import limits, times
from reports.rows import Mean, Row
from reports.statistics import Ratio


def rate_phrase(figure: Ratio, of: str) -> str:
    """A ratio of rates with its interval and n."""
    inside = f"95 % interval {limits(figure.interval)}" if figure.interval else "no interval"
    counts = f"n={figure.n}" if figure.n == figure.n_baseline else f"n={figure.n} against {figure.n_baseline}"
    return f"{times(figure.value)} ({inside}, {counts}) the rate of {of}"


def bytes_phrase(row: Row, other: Row) -> str:
    """By how much a row sends fewer bytes than another, or more.

    Returns:
        Nothing unless both send something, and differ by more than repeats do.
    """
    if row.tcp_bytes is not None and other.tcp_bytes is not None:
        return _share_phrase(row.tcp_bytes, other.tcp_bytes, "")
    if row.payload_bytes is None or other.payload_bytes is None:
        return ""
    if row.payload_is_bound or other.payload_is_bound:
        return ""
    return _share_phrase(row.payload_bytes, other.payload_bytes, " by prediction")


def _share_phrase(own: Mean, others: Mean, how: str) -> str:
    if own.low <= 0 or others.low <= 0 or (own.low <= others.high and others.low <= own.high):
        return ""
    share = own.value / others.value
    if share >= 2:
        return f", but sends {times(share)} the bytes{how}"
    percent = round(100 * abs(1 - share))
    if not percent:
        return ""
    return (
        f", {'and' if share < 1 else 'but'} sends {percent} % {'fewer' if share < 1 else 'more'} bytes{how}"
    )
