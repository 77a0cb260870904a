"""Numbers as a person reads them: three significant digits, a unit, and the interval or why there is none."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

from reports.statistics import Estimate, Interval, Mean, Ratio

Unit = Literal["number", "seconds", "bytes", "count", "bandwidth"]
MISSING = "\N{EN DASH}"
_TIMES = "\N{MULTIPLICATION SIGN}"
_TO = "\N{EN DASH}"
_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def digits(value: float, *, significant: int = 3) -> str:
    """A number in plain notation with thousands marks; very large and small ones in powers of ten."""
    if not math.isfinite(value):
        return "∞" if value > 0 else ("-∞" if value < 0 else "not a number")
    if value == 0:
        return "0"
    scientific = f"{value:.{significant - 1}e}"
    # 9.996 has size 0 but prints as 10.0: the size after rounding decides.
    size = int(scientific.partition("e")[2])
    if size >= 12 or size < -4:
        return scientific
    return f"{value:,.{max(0, significant - 1 - size)}f}"


def seconds(value: float | None) -> str:
    """A duration in the unit that suits it."""
    return _scaled(value, _TIME_UNITS)


def byte_count(value: float | None) -> str:
    """Bytes in decimal units."""
    return _scaled(value, _BYTE_UNITS)


def count(value: float | None) -> str:
    """A number of things, without decimals unless it has some."""
    if value is None or not math.isfinite(value):
        return plain(value)
    return f"{value:,.0f}" if value == round(value) else digits(value)


def plain(value: float | None) -> str:
    """A number without unit, or a dash."""
    return MISSING if value is None else digits(value)


def times(value: float | None, *, significant: int = 3) -> str:
    """A ratio with the multiplication sign behind it."""
    return MISSING if value is None else f"{digits(value, significant=significant)}{_TIMES}"


def error(value: float | None) -> str:
    """A relative error, always in powers of ten, so that two of them compare at a glance."""
    if value is None:
        return MISSING
    return "0" if value == 0 else f"{value:.1e}"


def limits(interval: Interval | None, *, unit: Unit = "number") -> str:
    """The limits of an interval, or nothing when there is none."""
    if interval is None:
        return ""
    show = seconds if unit == "seconds" else plain
    return f"{show(interval.low)}{_TO}{show(interval.high)}"


def interval_of(figure: Estimate | Ratio | None, *, unit: Unit = "number") -> str:
    """The interval of a figure, or why it has none."""
    if figure is None:
        return ""
    return limits(figure.interval, unit=unit) or figure.why_no_interval or ""


def spread_of(mean: Mean | None, *, unit: Unit = "number") -> str:
    """Least and greatest of the repeats behind a mean, after their number."""
    if mean is None:
        return ""
    show = UNITS.get(unit, plain)
    low, high = show(mean.low), show(mean.high)
    if mean.n == 1:
        return "n=1"
    return f"n={mean.n}, all {low}" if low == high else f"n={mean.n}, {low}{_TO}{high}"


def bandwidth(value: float | None) -> str:
    """Bytes per second in decimal units."""
    return MISSING if value is None else f"{byte_count(value)}/s"


def link_rate(mbit: float | None, *, significant: int = 3) -> str:
    """The rate of links; None for no limit."""
    return "no limit" if mbit is None else f"{digits(mbit, significant=significant)} Mbit/s"


UNITS: Mapping[str, Callable[[float | None], str]] = {
    "seconds": seconds,
    "bytes": byte_count,
    "count": count,
    "bandwidth": bandwidth,
}


def _scaled(value: float | None, units: tuple[tuple[float, str], ...]) -> str:
    if value is None:
        return MISSING
    if value == 0:
        return f"0 {units[0][1] if units is _TIME_UNITS else 'B'}"
    # Half a unit in the third digit: 999.6 ms is 1.00 s, not 1,000 ms.
    for scale, name in units:
        if abs(value) >= scale * 0.9995:
            return f"{digits(value / scale)} {name}"
    scale, name = units[-1]
    return f"{digits(value / scale)} {name}"
