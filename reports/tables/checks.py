"""Tables of what strategies compute, and of what has no result."""

from __future__ import annotations

from collections.abc import Sequence

from reports.marks import WORDS
from reports.quantities import error
from reports.rows import Comparison, Problem, Row
from reports.tables.table import Cell, Table, loss_cell, name_cell, table_of


def check_table(comparison: Comparison) -> Table:
    """Equivalence with the one-device reference, and the loss."""
    return table_of(
        "Update error against the one-device reference, relative to the update, of the variable nearest to "
        "its limit; loss before the update of the step named, warm-up steps counted too: mean and range over "
        "repeats",
        ("strategy", "class", "mark", "update error", "its tolerance", "first timed loss", "last timed loss"),
        [_check_cells(row) for row in comparison.rows],
        words=("class", "mark"),
    )


def problem_table(problems: Sequence[Problem]) -> Table:
    """Repeats without a usable result, with their runs where there are several."""
    names: tuple[str, ...] = ("strategy", "workload", "repeats", "status", "type", "stage", "message")
    names_runs = any(item.run for item in problems)
    if names_runs:
        names = (*names[:2], "run", *names[2:])

    def cells(item: Problem) -> tuple[Cell, ...]:
        repeats = ", ".join(str(repeat) for repeat in item.repeats)
        run = (item.run,) if names_runs else ()
        words = (*run, repeats, item.status, item.type, item.stage, item.message)
        where = Cell(text=item.workload, note=item.shape)
        return (Cell(text=item.strategy), where, *(Cell(text=word) for word in words))

    return table_of(
        "Failed, skipped and implausible repeats",
        names,
        [cells(item) for item in problems],
        words=names,
        prose=("message",),
    )


def _check_cells(row: Row) -> tuple[Cell, ...]:
    noise = "" if row.mark.noise_floor is None else f"rounding alone {error(row.mark.noise_floor)}"
    return (
        name_cell(row),
        Cell(text=row.class_),
        Cell(text=WORDS[row.mark.kind], note=row.mark.explanation),
        Cell(text=error(row.mark.max_update_error), value=row.mark.max_update_error),
        Cell(text=error(row.mark.tolerance), note=noise, value=row.mark.tolerance),
        loss_cell(row.loss_first, row.loss_first_step),
        loss_cell(row.loss_last, row.loss_last_step),
    )
