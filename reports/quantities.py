"""Numbers as a person reads them, with unit, interval and range, and tables of cells that hold them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from reports.statistics import Estimate, Interval, Mean, Ratio

Unit = Literal["number", "seconds", "bytes", "count", "bandwidth"]
MISSING = "\N{EN DASH}"
_TIMES = "\N{MULTIPLICATION SIGN}"
_TO = "\N{EN DASH}"
_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


# A page shows most figures several times: in tables, charts and tips.
@lru_cache(maxsize=100_000)
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


def percent(share: float, *, signed: bool = False) -> str:
    """A share in percent, with two digits, and with its sign if it matters."""
    text = f"{digits(100 * abs(share), significant=2)} %"
    return f"{'+' if share >= 0 else '−'}{text}" if signed else text


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


def evidence(ratio: Ratio) -> str:
    """Interval and n of a ratio, as in `CI 0.880–1.25, n = 3`."""
    n = f"{ratio.n}" if ratio.n == ratio.n_baseline else f"{ratio.n} vs {ratio.n_baseline}"
    return f"{f'CI {limits(ratio.interval)}' if ratio.interval else 'no CI'}, n = {n}"


def spread_of(mean: Mean | None, *, unit: Unit = "number") -> str:
    """Least and greatest of the repeats behind a mean, after their number."""
    if mean is None:
        return ""
    show = UNITS.get(unit, plain)
    low, high = show(mean.low), show(mean.high)
    if mean.n == 1:
        return "n = 1"
    return f"n = {mean.n}, all {low}" if low == high else f"n = {mean.n}, {low}{_TO}{high}"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Text of a cell, and a note below it.

    Attributes:
        value: number to sort by.
        link: id of the page's section that the text leads to.
    """

    text: str
    note: str = ""
    value: float | None = None
    link: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """Heading of a column.

    Attributes:
        key: name of a column whose heading depends on the run.
        numeric: True for a column that is flush right.
        prose: True for texts with code between backticks.
    """

    name: str
    key: str = ""
    numeric: bool = True
    prose: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells under headings; the first column names the row.

    Attributes:
        keys: names to filter the rows by, unless the first column has the strategies.
    """

    caption: str
    columns: tuple[Heading, ...]
    rows: tuple[tuple[Cell, ...], ...]
    keys: tuple[str, ...] = ()

    @property
    def is_of_strategies(self) -> bool:
        return self.columns[0].name == "strategy"


def table_of(
    caption: str,
    names: tuple[str, ...],
    rows: list[tuple[Cell, ...]],
    *,
    words: tuple[str, ...] = (),
    prose: tuple[str, ...] = (),
    keys: Mapping[str, str] | None = None,
) -> Table:
    """Cells under headings, the first column and those of words flush left.

    Args:
        prose: headings of columns with code between backticks.
        keys: heading → key of the column, for columns with a key.
    """
    columns = tuple(
        Heading(
            name=name,
            key=(keys or {}).get(name, ""),
            numeric=i > 0 and name not in words,
            prose=name in prose,
        )
        for i, name in enumerate(names)
    )
    return Table(caption=caption, columns=columns, rows=tuple(rows))


def number_cell(value: float | None, unit: Unit = "number", note: str = "") -> Cell:
    """A number in its unit."""
    return Cell(text=UNITS.get(unit, plain)(value), note=note, value=value)


def estimate_cell(figure: Estimate | None, unit: Unit = "number") -> Cell:
    """An estimate with its interval."""
    if figure is None:
        return Cell(text=MISSING)
    return number_cell(figure.value, unit, interval_of(figure, unit=unit))


def mean_cell(mean: Mean | None, unit: Unit = "number") -> Cell:
    """A mean over repeats with its range."""
    if mean is None:
        return Cell(text=MISSING)
    return number_cell(mean.value, unit, spread_of(mean, unit=unit))


def figure_cell(figure: Estimate | Mean | float | None, unit: Unit = "number") -> Cell:
    """A figure of any kind."""
    if isinstance(figure, Estimate):
        return estimate_cell(figure, unit)
    if isinstance(figure, Mean):
        return mean_cell(figure, unit)
    return number_cell(figure, unit)
