"""The comparison for a terminal: plain cells for whoever prints them.

Names come from users' files. Control characters are spelt out here, so that none can move a cursor; a
printer that has a markup of its own (rich) must take every cell as literal text.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.records.safe_text import spelt_out
from reports.marks import mark_words
from reports.quantities import MISSING, Cell, figure_cell, interval_of, times
from reports.rows.figure import Figure, figures_of
from reports.rows.report import Comparison, FaultMatrix, Report
from reports.rows.row import Row
from reports.tables.curves import fault_table, front_line

_SHOWN = tuple(figure for figure in figures_of(Row).values() if figure.terminal)


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalTable:
    """One workload and cluster shape: the verdict, the ranking and what to doubt."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    verdict: tuple[str, ...]
    notes: tuple[str, ...]


def terminal_tables(report: Report) -> tuple[TerminalTable, ...]:
    """All comparisons of a report; what concerns the whole report stands in the notes of the last one."""
    tables = [terminal_table(comparison) for comparison in report.comparisons]
    tables += map(_fault_table, report.fault_matrices)
    rest = [f"left out: {item.where}: {item.why}" for item in report.left_out]
    if rest and tables:
        last = tables[-1]
        tables[-1] = TerminalTable(
            title=last.title,
            columns=last.columns,
            rows=last.rows,
            verdict=last.verdict,
            notes=(*last.notes, *(spelt_out(text) for text in rest)),
        )
    return tuple(tables)


def terminal_table(comparison: Comparison) -> TerminalTable:
    """One comparison as literal text."""
    against = f"÷ {comparison.baseline}" if comparison.baseline else "ratio"
    shown = tuple(figure.terminal for figure in _SHOWN)
    columns = ("#", "strategy", "mark", "ex/s at p50", against, "95 % interval", *shown, "n")
    problems = [
        f"{problem.strategy}, repeat {', '.join(map(str, problem.repeats))}: "
        f"{problem.status} in {problem.stage}: {problem.type}: {problem.message}"
        for row in comparison.rows
        for problem in row.problems
    ]
    return TerminalTable(
        title=spelt_out(f"{comparison.workload} · {comparison.shape}"),
        columns=tuple(spelt_out(name) for name in columns),
        rows=tuple(_cells(row) for row in comparison.rows),
        verdict=tuple(spelt_out(text) for text in (comparison.verdict.headline, *comparison.verdict.details)),
        notes=tuple(spelt_out(text) for text in (*comparison.notes, *problems)),
    )


def _fault_table(matrix: FaultMatrix) -> TerminalTable:
    table = fault_table(matrix)
    return TerminalTable(
        title=spelt_out(f"{matrix.title} · {matrix.shape}"),
        columns=tuple(spelt_out(column.name) for column in table.columns),
        rows=tuple(tuple(spelt_out(_short(cell)) for cell in row) for row in table.rows),
        verdict=(spelt_out(front_line(matrix)),),
        notes=(spelt_out(table.caption),),
    )


def _short(cell: Cell) -> str:
    note = ", ".join(part for part in cell.note.split(", ") if part != "n=1")
    return f"{cell.text} ({note})" if note else cell.text


def _cells(row: Row) -> tuple[str, ...]:
    ratio = "1" if row.is_baseline else times(row.ratio.value if row.ratio else None)
    return (
        str(row.rank) if row.rank else MISSING,
        spelt_out(row.strategy),
        mark_words(row) if row.status == "ok" else row.status,
        figure_cell(row.rate).text,
        ratio,
        "baseline" if row.is_baseline else interval_of(row.ratio) or MISSING,
        *(_figure(row, figure) for figure in _SHOWN),
        str(row.n) if row.n == row.n_repeats else f"{row.n} of {row.n_repeats}",
    )


def _figure(row: Row, figure: Figure) -> str:
    text = figure.cell(row).text
    if figure.name == "tcp_bytes" and row.tcp_over_payload:
        return f"{text}, {times(row.tcp_over_payload, significant=4)}"
    return text
