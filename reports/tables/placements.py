"""Tables of plans and passes, of problems, and of facts that differ between runs."""

from __future__ import annotations

from collections.abc import Sequence

from reports.quantities import MISSING, Cell, Table, byte_count, count, mean_cell, table_of
from reports.rows.parts import PassRow, PlacementLine, Problem
from reports.rows.report import Comparison, FactValue, Report
from reports.rows.row import Row
from reports.tables.figures import name_cell

MOST_SERVERS = 16
"""Most servers that have a column of their own."""


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


def placement_table(row: Row) -> Table | None:
    """Table of a strategy's variables, their places and synchronization; None if no plan is known."""
    if row.placement is None:
        return None
    more = f"; {row.placement.n_more} smaller ones are not shown" if row.placement.n_more else ""
    words = ("variable", "shape", "type", "where", "gradient", "why")
    return table_of(
        f"Variables under {row.strategy}; # stands for the numbers of alike ones{more}",
        ("variable", "shape", "type", "bytes", "where", "gradient", "why"),
        [_line_cells(line) for line in row.placement.lines],
        words=words,
    )


def server_table(comparison: Comparison) -> Table | None:
    """Bytes of variables and slots on each server, summed beyond the first ones; None without servers."""
    served = [
        (row, row.placement)
        for row in comparison.rows
        if row.placement is not None and any(row.placement.server_bytes)
    ]
    if not served:
        return None
    n_tasks = max(len(placement.server_bytes) for _, placement in served)
    n_shown = min(n_tasks, MOST_SERVERS)
    is_cut = n_tasks > n_shown
    further = ("further servers", "least of all", "mean", "largest") if is_cut else ()
    names = ("strategy", *(f"server {task}" for task in range(n_shown)), *further, "largest over mean")
    which = f", the first {n_shown} one by one" if is_cut else ""
    return table_of(
        f"Bytes of variables and slots per server{which}",
        names,
        [
            (name_cell(row), *_server_cells(placement.server_bytes, n_shown, is_cut=is_cut))
            for row, placement in served
        ],
    )


def pass_table(comparison: Comparison) -> Table | None:
    """Nodes and time of each pass over the first worker's graph; None without any record of passes."""
    rows = [(row, item) for row in comparison.rows for item in row.passes]
    if not rows:
        return None
    return table_of(
        "Passes over the first worker's graph, in order; time: mean and range over repeats",
        ("strategy", "pass", "nodes after", "added", "time"),
        [(name_cell(row), *_pass_cells(item)) for row, item in rows],
        words=("pass",),
    )


def _line_cells(line: PlacementLine) -> tuple[Cell, ...]:
    return (
        Cell(text=line.name, note=f"{line.n} alike" if line.n > 1 else ""),
        Cell(text="\N{MULTIPLICATION SIGN}".join(map(str, line.shape)) or "scalar"),
        Cell(text=line.dtype),
        Cell(text=byte_count(line.bytes), note="each" if line.n > 1 else "", value=line.bytes),
        Cell(text=line.where),
        Cell(text=line.synchronized),
        Cell(text=line.why),
    )


def _server_cells(server_bytes: Sequence[int], n_shown: int, *, is_cut: bool) -> tuple[Cell, ...]:
    cells = [_bytes_cell(n_bytes) for n_bytes in server_bytes[:n_shown]]
    cells += [Cell(text="")] * (n_shown - len(cells))
    mean = sum(server_bytes) / len(server_bytes)
    if is_cut:
        further = server_bytes[n_shown:]
        sums = Cell(text=byte_count(sum(further)), note=f"{len(further)} servers", value=sum(further))
        cells += [
            sums if further else Cell(text=""),
            *map(_bytes_cell, (min(server_bytes), mean, max(server_bytes))),
        ]
    imbalance = max(server_bytes) / mean
    return (*cells, Cell(text=f"{imbalance:.2f}", value=imbalance))


def _bytes_cell(n_bytes: float) -> Cell:
    return Cell(text=byte_count(n_bytes), value=n_bytes)


def _pass_cells(item: PassRow) -> tuple[Cell, ...]:
    added = "" if item.added is None else f"{item.added:+,}"
    return (
        Cell(text=item.name),
        Cell(text=count(item.nodes), value=item.nodes),
        Cell(text=added, value=item.added),
        mean_cell(item.seconds, "seconds"),
    )


_MOST_VALUES = 4


def difference_table(report: Report) -> Table | None:
    """Table of facts that differ, by run; None if none differs."""
    if not report.differences:
        return None
    names = ("fact", *(report.run_in_words(origin.run) or origin.run for origin in report.origins))
    several = len(report.origins) > 1
    return table_of(
        f"Differences between {'runs' if several else 'records'}, with the number of records of each value",
        names,
        [(Cell(text=item.fact), *(_cell(values) for values in item.values)) for item in report.differences],
        words=names,
    )


def _cell(values: Sequence[FactValue]) -> Cell:
    if len(values) < 2:
        return Cell(text=values[0].text if values else MISSING)
    texts = "; ".join(value.text for value in values[:_MOST_VALUES])
    more = len(values) - _MOST_VALUES
    counts = ", ".join(str(value.n_records) for value in values[:_MOST_VALUES] if value.n_records)
    return Cell(text=f"{texts}; {more} more" if more > 0 else texts, note=f"{counts} records")
