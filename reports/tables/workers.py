"""Tables of what each worker takes: memory, and how evenly tasks hold, send and receive."""

from __future__ import annotations

from collections.abc import Sequence

from reports.quantities import MISSING, byte_count, times
from reports.rows import Comparison, WorkerMemory
from reports.tables.cells import Cell
from reports.tables.table import Table, table_of


def memory_table(comparison: Comparison) -> Table | None:
    """Memory of the largest and the smallest worker; None where it is not stored."""
    if not comparison.curves.memory:
        return None
    return table_of(
        "Memory of workers: peak resident bytes, mean and range over repeats, beside variables and slots",
        ("strategy", "workers", "largest", "smallest", "variables, largest", "variables, smallest", "n"),
        [
            (
                Cell(text=each.strategy),
                Cell(text=str(len(each.peak_bytes)), value=len(each.peak_bytes)),
                _peak_cell(each, _largest(each.peak_bytes)),
                _peak_cell(each, _largest([None if b is None else -b for b in each.peak_bytes])),
                *_limits(each.variable_bytes),
                Cell(text=str(each.n)),
            )
            for each in comparison.curves.memory
        ],
    )


def balance_table(comparison: Comparison) -> Table | None:
    """The busiest task beside the mean of all; None where nothing was sent between two tasks."""
    if not comparison.curves.balance:
        return None
    return table_of(
        "Balance of tasks: the largest and its number, and below it the largest ÷ the mean of all; TCP bytes "
        "of a step, mean over repeats; dedicated servers come last",
        ("strategy", "tasks", "sends most", "receives most", "holds most variables", "n"),
        [
            (
                Cell(text=each.strategy),
                Cell(text=str(len(each.sent_bytes)), value=len(each.sent_bytes)),
                _share_cell(each.sent_bytes, each.sent_imbalance),
                _share_cell(each.received_bytes, each.received_imbalance),
                _share_cell(each.variable_bytes or (), each.variable_imbalance),
                Cell(text=str(each.n)),
            )
            for each in comparison.curves.balance
        ],
    )


def _peak_cell(memory: WorkerMemory, worker: int) -> Cell:
    low, high = (limit[worker] if limit else None for limit in (memory.low, memory.high))
    spread = "" if low is None else f", {byte_count(low)}\N{EN DASH}{byte_count(high)}"
    peak = memory.peak_bytes[worker]
    return Cell(text=byte_count(peak), note=f"worker {worker}{spread}", value=peak)


def _limits(values: Sequence[int | None] | None) -> tuple[Cell, Cell]:
    known = [value for value in values or () if value is not None]
    largest, smallest = max(known, default=None), min(known, default=None)
    return Cell(text=byte_count(largest), value=largest), Cell(text=byte_count(smallest), value=smallest)


def _share_cell(values: Sequence[int | None], imbalance: float | None) -> Cell:
    if imbalance is None:
        return Cell(text=MISSING)
    task = _largest(values)
    return Cell(text=f"{byte_count(values[task])}, task {task}", note=times(imbalance), value=values[task])


def _largest(values: Sequence[int | None]) -> int:
    """Place of the largest; the first of several."""
    return max(
        (place for place, value in enumerate(values) if value is not None),
        key=lambda place: values[place] or 0,
    )
