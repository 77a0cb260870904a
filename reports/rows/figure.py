"""Figures: declarations of how fields of rows are read from records, combined over repeats, named and shown.

A field that is declared by `mean`, `estimate`, `largest`, `either` or `fact` carries its `Figure`. CSV,
tables of every medium, the terminal, `compare`, the nightly history and Prometheus follow from it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, TypeVar

from harness.records.record import Record
from reports.quantities import Cell, Unit, figure_cell
from reports.statistics import estimate_of, mean_of

T = TypeVar("T")
Reader = Callable[[Record], Any]
LAST = 100


@cache
def at(path: str) -> Callable[[Any], Any]:
    """Reader of a dotted path of fields; it returns None if one of them is None."""
    names = path.split(".")

    def read(owner: Any) -> Any:
        for name in names:
            if owner is None:
                break
            owner = getattr(owner, name)
        return owner

    return read


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a table of `reports.tables.figures`.

    Attributes:
        section: section of that module.
        place: order of columns, from the left.
        if_any: True to show the column only if a row of the comparison has the figure.
        when: test of a comparison; the column is shown only if it is true.
        cell: function that makes the cell from the row, or a part of it, and the figure; None for the default
            of the unit.
    """

    section: str
    heading: str
    place: int = LAST
    if_any: bool = False
    when: Callable[[Any], bool] | None = None
    cell: Callable[[Any, Any], Cell] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """Prometheus gauge of the newest repeat's figure; its name has no prefix."""

    name: str
    help: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatGauge:
    """Prometheus gauge with the reader of its figure."""

    name: str
    help: str
    of: Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """Tracking of a figure from run to run by `compare` and the nightly history; more of it is worse.

    Attributes:
        metric: name in a history.
        name: name in sentences.
        least_effect: smallest change of the logarithm that counts.
        usual_noise: standard deviation of a night's logarithm, assumed until many nights are stored.
    """

    metric: str
    name: str
    least_effect: float
    usual_noise: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Declaration of a field of a row.

    Attributes:
        name: name of the field, also in JSON.
        of: reader of the figure of one repeat, or its path in the record; None if it has neither.
        combine: function that combines the figures of all repeats.
        csv: name of the CSV column; empty for none.
        has_interval: True to add CSV columns with the limits of its interval.
        csv_range: True to add CSV columns with the least and greatest value and the number of repeats.
        terminal: heading in the terminal's table; empty for none.
    """

    name: str = ""
    of: Reader | str | None = None
    combine: Callable[[Sequence[Any]], Any] | None = None
    unit: Unit = "number"
    csv: str = ""
    has_interval: bool = False
    csv_range: bool = False
    column: Column | None = None
    terminal: str = ""
    gauge: Gauge | None = None
    followed: Followed | None = None

    def values(self, records: Iterable[Record]) -> list[Any]:
        """Figures of the repeats that have it."""
        return [value for record in records if (value := self.read(record)) is not None]

    def read(self, record: Record) -> Any:
        """Figure of one repeat, or None."""
        assert self.of is not None, self.name
        return (at(self.of) if isinstance(self.of, str) else self.of)(record)

    def cell(self, owner: object) -> Cell:
        """Table cell of a row, or of a part of it."""
        value = None if owner is None else getattr(owner, self.name)
        if owner is not None and self.column is not None and self.column.cell is not None:
            return self.column.cell(owner, value)
        return figure_cell(value, self.unit)


def estimate(of: Reader | str, csv: str = "", column: Column | None = None, **others: Any) -> Any:
    """Geometric mean of the repeats, with its interval: an `Estimate`, or None."""
    return _declared(Figure(of=of, csv=csv, column=column, combine=estimate_of, has_interval=True, **others))


def mean(of: Reader | str, csv: str = "", column: Column | None = None, **others: Any) -> Any:
    """Arithmetic mean of the repeats, with their range: a `Mean`, or None."""
    return _declared(Figure(of=of, csv=csv, column=column, combine=mean_of, **others))


def largest(of: Reader | str, csv: str = "", column: Column | None = None, **others: Any) -> Any:
    """Largest of the repeats, or None."""
    return _declared(
        Figure(of=of, csv=csv, column=column, combine=lambda values: max(values, default=None), **others)
    )


def either(of: Reader | str, csv: str = "", column: Column | None = None, **others: Any) -> Any:
    """True if it is true in any repeat."""
    return _declared(Figure(of=of, csv=csv, column=column, combine=any, **others), default=False)


def fact(csv: str = "", column: Column | None = None, **others: Any) -> Any:
    """Field that is not combined from repeats, but named and shown like one that is."""
    return _declared(Figure(csv=csv, column=column, **others))


def _declared(figure: Figure, *, default: object = None) -> Any:
    return field(default=default, metadata={"figure": figure})


@cache
def figures_of(kind: type) -> Mapping[str, Figure]:
    """Figures of a row, or of a part of it, by field name."""
    return {
        item.name: replace(item.metadata["figure"], name=item.name)
        for item in fields(kind)
        if "figure" in item.metadata
    }


def combined(kind: type[T], records: Sequence[Record], **others: Any) -> T:
    """Row, or part of a row, with figures combined over repeats.

    Args:
        records: one per usable repeat.
        others: fields that are not combined from repeats.
    """
    assert dataclasses.is_dataclass(kind)
    values = {
        name: figure.combine(figure.values(records))
        for name, figure in figures_of(kind).items()
        if figure.combine is not None
    }
    return kind(**values, **others)
