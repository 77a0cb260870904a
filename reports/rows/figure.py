"""Figures: how a field of a row is read from records, combined over repeats, named and shown.

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
    """Reader of a dotted path of fields; it returns None as soon as one of them is None."""
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
        section: one of that module's sections.
        place: order of the columns, from the left.
        if_any: whether it needs a row of the comparison that has the figure.
        when: test of a comparison, for a column that not all have.
        cell: makes a cell of the row, or part of a row, and the figure; None for the unit's own.
    """

    section: str
    heading: str
    place: int = LAST
    if_any: bool = False
    when: Callable[[Any], bool] | None = None
    cell: Callable[[Any, Any], Cell] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """Prometheus' gauge of the figure of the newest repeat; its name lacks the prefix."""

    name: str
    help: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatGauge:
    """Gauge with the reader of its figure."""

    name: str
    help: str
    of: Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """Following of a figure from run to run, by `compare` and the nightly history; more of it is worse.

    Attributes:
        metric: name in a history.
        name: in sentences.
        least_effect: change of the logarithm below which it does not matter.
        usual_noise: standard deviation of a night's logarithm, before many nights are known.
    """

    metric: str
    name: str
    least_effect: float
    usual_noise: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Declaration of a field of a row.

    Attributes:
        name: of the field, and in JSON.
        of: reader of the figure of one repeat, or its path in the record; None where it has none.
        combine: the figure of all repeats that have it.
        csv: name of the column in CSV, empty for none.
        has_interval: whether it has an interval, whose limits CSV has, too.
        csv_range: whether CSV has the least, the greatest and the number of repeats, too.
        terminal: heading in the table of a terminal, empty where that does not show it.
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
        """The figure of each repeat that has it."""
        return [value for record in records if (value := self.read(record)) is not None]

    def read(self, record: Record) -> Any:
        """The figure of one repeat, or None."""
        assert self.of is not None, self.name
        return (at(self.of) if isinstance(self.of, str) else self.of)(record)

    def cell(self, owner: object) -> Cell:
        """The figure of a row, or of a part of one, as a table shows it."""
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
    """True if any repeat says so."""
    return _declared(Figure(of=of, csv=csv, column=column, combine=any, **others), default=False)


def fact(csv: str = "", column: Column | None = None, **others: Any) -> Any:
    """Field that is not combined from figures of repeats, but is named and shown as one."""
    return _declared(Figure(csv=csv, column=column, **others))


def _declared(figure: Figure, *, default: object = None) -> Any:
    return field(default=default, metadata={"figure": figure})


@cache
def figures_of(kind: type) -> Mapping[str, Figure]:
    """Figures of a row, or of a part of one, by the names of their fields."""
    return {
        item.name: replace(item.metadata["figure"], name=item.name)
        for item in fields(kind)
        if "figure" in item.metadata
    }


def combined(kind: type[T], records: Sequence[Record], **others: Any) -> T:
    """A row, or a part of one, with the figures of all repeats.

    Args:
        records: one of each repeat that counts.
        others: fields that are not combined from figures of repeats.
    """
    assert dataclasses.is_dataclass(kind)
    values = {
        name: figure.combine(figure.values(records))
        for name, figure in figures_of(kind).items()
        if figure.combine is not None
    }
    return kind(**values, **others)
