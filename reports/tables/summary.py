"""Summary of a report: one row per workload and shape, and one per metric under faults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reports.charts.in_page import KINDS
from reports.marks import WORDS
from reports.quantities import MISSING, Cell, Table, byte_count, interval_of, limits, table_of, times
from reports.recommendation.candidates import layer_of, sent_by
from reports.rows.report import Comparison, Report
from reports.rows.row import Row

_NAMES = ("workload", "run", "shape", "winner", "speedup", "sent/step", "correct")


def comparison_id(number: int) -> str:
    """Id of a comparison's section in a page."""
    return f"comparison-{number}"


def faults_id(number: int) -> str:
    """Id of a fault matrix's section in a page."""
    return f"faults-{number}"


def summary_table(report: Report) -> Table | None:
    """Winner, speedup, traffic and correctness of each comparison; None without any comparison."""
    rows = [*_fault_rows(report), *_comparison_rows(report)]
    if not rows:
        return None
    places = [place for place, name in enumerate(_NAMES) if name != "run" or len(report.origins) > 1]
    return table_of(
        "Speedup over the baseline with its 95 % interval; bytes sent per step by all workers",
        tuple(_NAMES[place] for place in places),
        [tuple(row[place] for place in places) for row in rows],
        words=tuple(name for name in _NAMES if name not in ("speedup", "sent/step")),
    )


def _comparison_rows(report: Report) -> Iterator[tuple[Cell, ...]]:
    for number, comparison in enumerate(report.comparisons):
        if report.fault_matrices and comparison.faults:
            continue
        leaders = [
            row for name in comparison.verdict.leaders for row in comparison.rows if row.strategy == name
        ]
        shown = next((row for row in leaders if not row.is_baseline), next(iter(leaders), None))
        yield (
            Cell(text=comparison.workload, link=comparison_id(number)),
            Cell(text=report.run_in_words(comparison.run)),
            Cell(text=comparison.shape),
            _winner_cell(comparison),
            _speedup_cell(shown, comparison),
            _sent_cell(shown),
            _correct_cell(leaders),
        )


def _winner_cell(comparison: Comparison) -> Cell:
    names = ", ".join(comparison.verdict.leaders)
    match comparison.verdict.kind:
        case "clear":
            return Cell(text=names)
        case "together":
            return Cell(text=f"tie: {names}", note="no significant difference")
        case "no-interval":
            return Cell(text=f"undecided: {names} leads", note="too few repeats")
        case "none":
            return Cell(
                text="no winner", note=f"only {names} is comparable" if names else "nothing comparable"
            )


def _speedup_cell(row: Row | None, comparison: Comparison) -> Cell:
    if row is None:
        return Cell(text=MISSING)
    if row.is_baseline:
        return Cell(text=times(1.0), note="the baseline", value=1.0)
    if row.ratio is None:
        return Cell(text=MISSING)
    inside = limits(row.ratio.interval) or interval_of(row.ratio)
    return Cell(
        text=times(row.ratio.value), note=f"{inside}, over {comparison.baseline}", value=row.ratio.value
    )


def _sent_cell(row: Row | None) -> Cell:
    layer = layer_of([row]) if row else "tcp"
    sent = sent_by(row, layer) if row else None
    if sent is None:
        return Cell(text=MISSING)
    return Cell(text=sent.text, note="" if layer == "tcp" else "predicted", value=sent.mean.value)


def _correct_cell(leaders: Sequence[Row]) -> Cell:
    marks = {KINDS[row.mark.kind].text[0]: WORDS[row.mark.kind] for row in leaders}
    if list(marks) == ["✓"]:
        return Cell(text="✓")
    return Cell(text=", ".join(f"{sign} {word}" for sign, word in marks.items()) or MISSING)


def _fault_rows(report: Report) -> Iterator[tuple[Cell, ...]]:
    missing = Cell(text=MISSING)
    for number, matrix in enumerate(report.fault_matrices):
        front = [line for line in matrix.lines if line.on_front]
        best = next(iter(front), None)
        yield (
            Cell(text=matrix.title, link=faults_id(number)),
            Cell(text=report.run_in_words(matrix.run)),
            Cell(text=matrix.shape),
            Cell(text=", ".join(line.strategy for line in front) or "no winner"),
            Cell(text=times(best.relative_rate), note=f"{best.strategy} over {matrix.baseline}")
            if best
            else missing,
            Cell(text=byte_count(best.payload_bytes), note="predicted") if best else missing,
            missing,
        )
