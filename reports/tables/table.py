"""A table as text cells, the same for every medium; escaping is the medium's business."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reports.tables.cells import Cell


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
