"""The table of facts that differ between runs, or between records of one."""

from __future__ import annotations

from collections.abc import Sequence

from reports.quantities import MISSING
from reports.rows import FactValue, Report
from reports.tables.cells import Cell
from reports.tables.table import Table, table_of

_MOST_VALUES = 4


def difference_table(report: Report) -> Table | None:
    """A line for each fact that differs, a column for each run; None where all is alike."""
    if not report.differences:
        return None
    names = ("fact", *(report.run_in_words(origin.run) or origin.run for origin in report.origins))
    several = len(report.origins) > 1
    return table_of(
        f"Facts that are not the same in all {'runs' if several else 'records'}; several values of one run "
        "with the number of their records",
        names,
        [(Cell(text=item.fact), *(_cell(values) for values in item.values)) for item in report.differences],
        words=names,
    )


def _cell(values: Sequence[FactValue]) -> Cell:
    if len(values) < 2:
        return Cell(text=values[0].text if values else MISSING)
    shown = "; ".join(value.text for value in values[:_MOST_VALUES])
    more = len(values) - _MOST_VALUES
    counts = ", ".join(str(value.n_records) for value in values[:_MOST_VALUES] if value.n_records)
    return Cell(text=f"{shown}; {more} others" if more > 0 else shown, note=f"{counts} records")
