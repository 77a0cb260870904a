"""A table as text cells, the same for every medium; each medium escapes them itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from reports.quantities import MISSING, UNITS, count, digits, interval_of, plain, seconds, spread_of, times
from reports.rows import Mean, Row
from reports.statistics import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A figure or word, and below it what it rests on; `value` is what readers sort by."""

    text: str
    note: str = ""
    value: float | None = None


def name_cell(row: Row) -> Cell:
    """The strategy of a row."""
    return Cell(text=row.strategy, note="baseline" if row.is_baseline else "")


def estimate_cell(figure: Estimate | None, show: Callable[[float | None], str]) -> Cell:
    """An estimate with its interval."""
    if figure is None:
        return Cell(text=MISSING)
    note = interval_of(figure, unit="seconds" if show is seconds else "")
    return Cell(text=show(figure.value), note=note, value=figure.value)


def ratio_cell(row: Row) -> Cell:
    """Speed relative to the baseline, with its interval and p-value."""
    if row.is_baseline:
        return Cell(text="1", note="baseline", value=1.0)
    if row.ratio is None:
        return Cell(text=MISSING)
    p_value = f"p={digits(row.ratio.p_value, significant=2)}" if row.ratio.p_value is not None else ""
    note = ", ".join(filter(None, (interval_of(row.ratio), p_value)))
    value = row.ratio.value if math.isfinite(row.ratio.value) else None
    return Cell(text=times(row.ratio.value), note=note, value=value)


def mean_cell(mean: Mean | None, *, unit: str = "number") -> Cell:
    """A mean over repeats with its range."""
    if mean is None:
        return Cell(text=MISSING)
    return Cell(text=UNITS.get(unit, plain)(mean.value), note=spread_of(mean, unit=unit), value=mean.value)


def loss_cell(mean: Mean | None, step: Mean | None) -> Cell:
    """A loss with the number of its step: the later it is, the longer was the training before it."""
    cell = mean_cell(mean)
    if mean is None or step is None:
        return cell
    first, last = count(step.low), count(step.high)
    at = f"step {first}" if first == last else f"steps {first} to {last}"
    return Cell(text=cell.text, note=f"{at}, {cell.note}", value=cell.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
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
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    keys: tuple[str, ...] = ()

    @property
    def is_of_strategies(self) -> bool:
        """Whether each row is of the strategy that its first cell names."""
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
        Column(
            name=name,
            key=(keys or {}).get(name, ""),
            numeric=i > 0 and name not in words,
            prose=name in prose,
        )
        for i, name in enumerate(names)
    )
    return Table(caption=caption, columns=columns, rows=tuple(rows))
