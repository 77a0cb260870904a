"""Result of a run as text: for each workload a headline, one table and at most two warnings.

Names come from users' files. Control characters are spelt out here, so that none can move a cursor.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TypeVar

from harness.records.safe_text import printable
from reports.curves.residuals import predicted_rows
from reports.marks import SYMBOLS, legend_of, why_unranked
from reports.pages.sections import failure_texts
from reports.quantities import MISSING, byte_count, count, digits, limits, link_rate, seconds, times
from reports.recommendation.phrases import is_disturbance
from reports.rows.figure import Figure, figures_of
from reports.rows.report import Comparison, FaultMatrix, LinkSensitivity, Note, Report, Scaling
from reports.rows.row import Row
from reports.shapes import brief
from reports.statistics import Estimate, Mean
from reports.tables.curves import fault_table, front_line

T = TypeVar("T")
_COLUMNS = 100
_LONGEST_NAME, _LONGEST_REASON = 30, 60
_MOST_TABLES = 12
"""Most comparisons with a table; if there are more, the terminal shows headlines only."""
_MOST_WARNINGS = 2
_MOST_SIZES, _MOST_LINES = 5, 12
"""Most columns and rows of the table of a sweep: the first ones, and always the last column."""
_NO_BREAK = "\N{NO-BREAK SPACE}"
_WHOLE = re.compile(r"\(CI [^()]*\)|\w+ = \S+")
"""Parts of a text that stay on one line: an interval, and "n = 3"."""
_FIGURES = tuple(figure for figure in figures_of(Row).values() if figure.terminal)
_PREDICTED = "predicted_step_s"
"""Figure that has no column if there is no room for it, or if nothing is predicted."""


def to_text(report: Report, *, folder: str, with_notes: bool = False) -> str:
    """Results of a report, in 100 columns unless a path or a name is longer.

    Args:
        folder: run folder as a person would type it.
        with_notes: True to show all notes and details after each table, instead of only the gravest warnings.
    """
    # Under faults no strategy is ranked: their matrices show what became of them.
    ranked = [item for item in report.comparisons if not (report.fault_matrices and item.faults)]
    with_tables = with_notes or len(ranked) <= _MOST_TABLES
    blocks = [_comparison(item, with_table=with_tables, with_notes=with_notes) for item in ranked]
    blocks += map(_faults, report.fault_matrices)
    blocks += map(_scaling, report.scaling)
    blocks += map(_batch_sizes, _batch_sweeps(ranked))
    blocks += map(_links, report.link_sensitivity)
    blocks.append(_legend(ranked) if with_tables else iter(()))
    if not with_notes:
        blocks.append(_left_out(report, ranked, folder))
    texts = ["\n".join(map(printable, block)) for block in blocks]
    nothing = [] if report.comparisons else ["no result has been recorded"]
    return "\n\n".join((*nothing, *filter(None, texts)))


def _comparison(comparison: Comparison, *, with_table: bool, with_notes: bool) -> Iterator[str]:
    n_repeats = max((row.n_repeats for row in comparison.rows), default=0)
    yield _title(comparison.workload, comparison.shape, f"{n_repeats} repeat{'' if n_repeats == 1 else 's'}")
    notes = comparison.note_values if with_notes else comparison.warnings[:_MOST_WARNINGS]
    # Doubts about all figures come before the figures.
    disturbances = list(filter(is_disturbance, notes))
    yield from _notes(disturbances, is_whole=with_notes)
    yield from _item(f"{comparison.verdict.label}  {comparison.verdict.claim}")
    if not with_table:
        return
    for status, text in failure_texts(comparison):
        yield from _item(text if status == "skipped" or comparison.faults else f"! {text}")
    rows = [row for row in comparison.rows if row.status == "ok"]
    if rows:
        yield from _ranking(comparison, rows)
    yield from _notes([note for note in notes if note not in disturbances], is_whole=with_notes)
    for detail in comparison.verdict.details if with_notes else ():
        yield from _item(f"- {detail}", is_whole=True)


def _ranking(comparison: Comparison, rows: Sequence[Row]) -> Iterator[str]:
    """Table of rows; predictions that it has no room for are in a line below it."""
    steps = [
        f"{row.strategy} {seconds(row.predicted_step_s.value)}, measured {seconds(row.p50_s.value)}"
        for row in predicted_rows(comparison)
        if row.predicted_step_s is not None and row.p50_s is not None
    ]
    lines = _figures_table(comparison, rows, _FIGURES)
    fits = len(lines[0]) <= _COLUMNS
    if fits and steps:
        yield from lines
        return
    yield from _figures_table(comparison, rows, [figure for figure in _FIGURES if figure.name != _PREDICTED])
    if steps:
        yield from _item(f"predicted step: {'; '.join(steps)}")


def _figures_table(comparison: Comparison, rows: Sequence[Row], figures: Sequence[Figure]) -> list[str]:
    against = f"vs {comparison.baseline}" if comparison.baseline else "ratio"
    headings = (figure.terminal for figure in figures)
    columns = ("rank", "strategy", against, "95 % CI", "ex/s", *headings, "correct")
    return list(_table(columns, [_cells(row, rows, figures) for row in rows], name=1))


def _title(workload: str, shape: str, *more: str) -> str:
    return f"{workload}   {' · '.join(filter(None, (brief(shape), *more)))}"


def _notes(notes: Sequence[Note], *, is_whole: bool) -> Iterator[str]:
    for note in notes:
        yield from _item(f"{'!' if note.severity == 'warning' else '-'} {note.text}", is_whole=is_whole)


def _item(text: str, *, is_whole: bool = False) -> list[str]:
    """Wrap a text, with later lines indented, and cut a very long one."""
    lines = textwrap.wrap(
        _WHOLE.sub(lambda match: match[0].replace(" ", _NO_BREAK), printable(text)),
        _COLUMNS,
        initial_indent="  ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
        max_lines=None if is_whole else 3,
        placeholder=" …",
    )
    return [line.replace(_NO_BREAK, " ") for line in lines]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, name: int) -> Iterator[str]:
    """Lines of a table: names flush left, figures flush right; a name that is too long has its own line.

    Args:
        name: column of the names.
    """
    safe = [[printable(cell) for cell in row] for row in (columns, *rows)]
    short = [
        [cell if i != name or len(cell) <= _LONGEST_NAME else "" for i, cell in enumerate(row)]
        for row in safe
    ]
    widths = [max(map(len, column)) for column in zip(*short, strict=True)]
    for row, short_row in zip(safe, short, strict=True):
        cells = [
            cell.ljust(width) if i == name else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(short_row, widths, strict=True))
        ]
        if row[name] != short_row[name]:
            yield f"  {'  '.join((*cells[:name], row[name]))}"
            cells[:name] = [" " * width for width in widths[:name]]
        yield f"  {'  '.join(cells)}".rstrip()


def _cells(row: Row, rows: Sequence[Row], figures: Sequence[Figure]) -> tuple[str, ...]:
    why = textwrap.shorten(why_unranked(row), _LONGEST_REASON, placeholder=" …")
    is_shared = sum(other.rank == row.rank for other in rows) > 1
    return (
        MISSING if row.rank is None else f"{row.rank}{'=' if is_shared else ' '}",
        f"{row.strategy} ({why})" if why else row.strategy,
        _ratio(row),
        "baseline" if row.is_baseline else limits(row.ratio.interval) or MISSING if row.ratio else MISSING,
        _rounded(row.rate),
        *(_figure(row, figure) for figure in figures),
        SYMBOLS[row.mark.kind],
    )


def _ratio(row: Row) -> str:
    return times(1.0 if row.is_baseline else row.ratio.value if row.ratio else None)


def _rounded(rate: Estimate | Mean | None) -> str:
    """A rate in three digits."""
    return MISSING if rate is None else digits(float(f"{rate.value:.3g}"))


def _percent(share: Estimate) -> str:
    return f"{digits(100 * share.value, significant=2)} %"


def _figure(row: Row, figure: Figure) -> str:
    if figure.name == "tcp_bytes" and row.tcp_bytes is None and row.payload_bytes is not None:
        return f"{'≤ ' if row.payload_is_bound else ''}{byte_count(row.payload_bytes.value)}"
    return figure.cell(row).text


def _faults(matrix: FaultMatrix) -> Iterator[str]:
    table = fault_table(matrix)
    yield _title(matrix.title, matrix.shape)
    yield from _item(front_line(matrix))
    yield from _table(
        [column.name for column in table.columns], [[cell.text for cell in row] for row in table.rows], name=0
    )


def _scaling(scaling: Scaling) -> Iterator[str]:
    rule = "per replica" if scaling.kind == "weak" else "in total"
    yield _title(f"{scaling.workload}: scaling", scaling.shape, f"batch {scaling.batch_size} {rule}")
    if scaling.fastest:
        yield from _item(scaling.fastest)
    references = {line.reference for line in scaling.lines}
    against = references.pop() if len(references) == 1 else "the smallest size"
    yield f"  ex/s, and efficiency against {against}, by number of workers"
    points = [point for line in scaling.lines for point in line.points]
    sizes = sorted({(point.n_devices, point.workers, point.replicas) for point in points})
    yield from _sweep(
        {size: f"{size[1]}{'' if size[2] == 1 else f' × {size[2]}'}" for size in sizes},
        [
            (
                line.strategy,
                {
                    (point.n_devices, point.workers, point.replicas): (
                        f"{_rounded(point.rate)} {_percent(point.efficiency):>6}"
                    )
                    for point in line.points
                },
            )
            for line in scaling.lines
        ],
    )


def _batch_sweeps(comparisons: Sequence[Comparison]) -> Iterator[Sequence[Comparison]]:
    """Comparisons that differ in nothing but their batch size, smallest first."""
    groups: dict[tuple[str, str, str], list[Comparison]] = {}
    for comparison in comparisons:
        key = (comparison.run, comparison.workload, _shape_without_batch(comparison))
        groups.setdefault(key, []).append(comparison)
    for group in groups.values():
        if len(group) > 1 and all(comparison.batch_size for comparison in group):
            yield sorted(group, key=lambda comparison: comparison.batch_size or 0)


def _shape_without_batch(comparison: Comparison) -> str:
    parts = comparison.shape.split(", ")
    return ", ".join(part for part in parts if part != f"batch {comparison.batch_size}")


def _batch_sizes(comparisons: Sequence[Comparison]) -> Iterator[str]:
    first = comparisons[0]
    # Another strategy replaces a baseline that failed at one size.
    baseline = Counter(comparison.baseline for comparison in comparisons).most_common(1)[0][0]
    yield _title(f"{first.workload}: batch sizes", _shape_without_batch(first))
    yield f"  ex/s, and ratio to {baseline or 'the baseline'}, by batch size"
    cells: dict[str, dict[int | None, str]] = {}
    for comparison in comparisons:
        for row in comparison.rows:
            if row.status == "ok":
                ratio = _ratio(row) if comparison.baseline == baseline else ""
                text = f"{_rounded(row.rate)} {ratio:>7}"
                cells.setdefault(row.strategy, {})[comparison.batch_size] = text
    sizes = {comparison.batch_size: count(comparison.batch_size) for comparison in comparisons}
    yield from _sweep(sizes, list(cells.items()))


def _links(links: LinkSensitivity) -> Iterator[str]:
    rates = dict.fromkeys(point.requested_mbit for line in links.lines for point in line.points)
    yield _title(f"{links.workload}: links", links.shape)
    yield "  ex/s by link rate"
    yield from _sweep(
        {mbit: link_rate(mbit) for mbit in sorted(rates, key=lambda mbit: (mbit is None, mbit))},
        [
            (line.strategy, {point.requested_mbit: _rounded(point.rate) for point in line.points})
            for line in links.lines
        ],
    )
    for sentence in links.sentences:
        yield from _item(sentence)


def _sweep(headings: Mapping[T, str], lines: Sequence[tuple[str, Mapping[T, str]]]) -> Iterator[str]:
    """Table of strategies by a swept value.

    Args:
        headings: value → its heading, in order.
        lines: each strategy with its cell for each measured value.
    """
    columns = ("strategy", *_few(tuple(headings.values())))
    rows = [
        (strategy, *_few([cells.get(value, MISSING) for value in headings]))
        for strategy, cells in lines[:_MOST_LINES]
    ]
    if n_more := len(lines[_MOST_LINES:]):
        rows.append((f"… {n_more} more", *("" for _ in columns[1:])))
    yield from _table(columns, rows, name=0)


def _few(cells: Sequence[str]) -> Sequence[str]:
    """First and last cells of a row, with an ellipsis for those between if there are many."""
    return cells if len(cells) <= _MOST_SIZES else (*cells[: _MOST_SIZES - 1], "…", cells[-1])


def _legend(comparisons: Sequence[Comparison]) -> Iterator[str]:
    rows = chain.from_iterable(comparison.rows for comparison in comparisons)
    if marks := legend_of({row.mark.kind for row in rows if row.status == "ok"}):
        yield from textwrap.wrap(f"sent/step: by all workers; correct: {marks}", _COLUMNS)


def _left_out(report: Report, comparisons: Sequence[Comparison], folder: str) -> Iterator[str]:
    """Lines on what the report could not use, and where further notes are."""
    for item in report.left_out[:_MOST_WARNINGS]:
        yield from textwrap.wrap(f"left out: {item.where}: {item.why}", _COLUMNS, max_lines=3)
    n_more = len(report.left_out[_MOST_WARNINGS:]) + sum(
        len(comparison.verdict.details) + len(comparison.notes) - len(comparison.warnings[:_MOST_WARNINGS])
        for comparison in comparisons
    )
    if n_more:
        n_warnings = sum(len(comparison.warnings[_MOST_WARNINGS:]) for comparison in comparisons)
        which = f", {n_warnings} of them warnings" if n_warnings else ", no more warnings"
        yield f"{n_more} more note{'' if n_more == 1 else 's'}{which}: stratbench report {folder} --notes"
