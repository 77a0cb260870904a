"""Tables as text cells, the same for every medium; each medium escapes them itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reports.quantities import MISSING, UNITS, Unit, interval_of, plain, spread_of
from reports.statistics import Estimate, Mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A figure or word, and below it what it rests on; `value` is what readers sort by."""

    text: str
    note: str = ""
    value: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """A heading; numeric columns are set flush right, and code between backticks in prose as code.

    `key` names a column whose heading depends on the run.
    """

    name: str
    key: str = ""
    numeric: bool = True
    prose: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells under headings; the first column names the row.

    `keys`: what readers filter the rows by, where that is another thing than a strategy in the first column.
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
        prose: headings of columns in which code stands between backticks.
        keys: heading → the column's key, for those that have one.
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
