"""Summary of a report: one row per workload and shape, and one per metric under faults."""

from __future__ import annotations

from collections.abc import Iterator

from reports.marks import SYMBOLS, mark_text
from reports.quantities import MISSING, Cell, Table, byte_count, evidence, table_of, times
from reports.recommendation import phrases
from reports.recommendation.candidates import can_win, layer_of, sent_by
from reports.rows.report import Comparison, Report
from reports.rows.row import Row
from reports.shapes import brief

_NAMES = ("workload", "run", "winner", "speedup", "sent/step", "correct")


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
        "Speedup with its 95 % CI; bytes sent per step by all workers",
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
        marks = {SYMBOLS[row.mark.kind]: mark_text(row.mark.kind) for row in reversed(leaders)}
        leader = next((row for row in leaders if not row.is_baseline), next(iter(leaders), None))
        yield (
            Cell(text=comparison.workload, note=brief(comparison.shape), link=comparison_id(number)),
            Cell(text=report.run_in_words(comparison.run)),
            _winner_cell(comparison),
            _speedup_cell(leader, comparison),
            _sent_cell(leader),
            Cell(text=", ".join(marks.values()) or MISSING),
        )


def _winner_cell(comparison: Comparison) -> Cell:
    names = ", ".join(comparison.verdict.leaders)
    match comparison.verdict.kind:
        case "clear":
            return Cell(text=names, note=comparison.verdict.label.partition(" (")[2].rstrip(")"))
        case "together":
            return Cell(text=f"tie: {names}", note="no significant difference")
        case "no-interval":
            return Cell(text=f"undecided: {names} leads", note="too few repeats")
        case "none":
            return Cell(
                text="no winner", note=f"only {names} is comparable" if names else "nothing comparable"
            )


def _speedup_cell(row: Row | None, comparison: Comparison) -> Cell:
    """Ratio of the winner to the baseline, or to the next if the baseline wins."""
    ratio, text, note = (row.ratio if row else None), "", f", vs {comparison.baseline}"
    if row is not None and row.is_baseline:
        following = next(
            (next_row for next_row in comparison.rows if next_row.ratio and can_win(next_row)), None
        )
        if following is not None and following.ratio is not None:
            ratio, text = following.ratio.inverse(), f" {phrases.NEXT.format(name=following.strategy)}"
            note = f"; {phrases.ONE_DEVICE}" if row.mark.kind == "reference" else ""
    if ratio is None:
        return Cell(text=MISSING)
    return Cell(text=f"{times(ratio.value)}{text}", note=f"{evidence(ratio)}{note}", value=ratio.value)


def _sent_cell(row: Row | None) -> Cell:
    layer = layer_of([row]) if row else "tcp"
    sent = sent_by(row, layer) if row else None
    if sent is None:
        return Cell(text=MISSING)
    return Cell(text=sent.text, note="" if layer == "tcp" else "predicted", value=sent.mean.value)


def _fault_rows(report: Report) -> Iterator[tuple[Cell, ...]]:
    missing = Cell(text=MISSING)
    for number, matrix in enumerate(report.fault_matrices):
        front = [line for line in matrix.lines if line.on_front]
        best = next(iter(front), None)
        yield (
            Cell(text=matrix.title, note=brief(matrix.shape), link=faults_id(number)),
            Cell(text=report.run_in_words(matrix.run)),
            Cell(text=", ".join(line.strategy for line in front) or "no winner"),
            Cell(text=times(best.relative_rate), note=f"{best.strategy} over {matrix.baseline}")
            if best
            else missing,
            Cell(text=byte_count(best.payload_bytes), note="predicted") if best else missing,
            missing,
        )
