"""Tables of what strategies come to under faults."""

from __future__ import annotations

import math

from reports.cells import Cell, Table, table_of
from reports.curves.fault_matrix import DIVERGED
from reports.quantities import MISSING, byte_count, times
from reports.rows.report import FaultCell, FaultMatrix

_MANY = 1e5


def fault_table(matrix: FaultMatrix) -> Table:
    """A metric by strategy and scenario, with what each strategy costs without faults."""
    names = [name for name, _ in matrix.scenarios]
    better = "less" if matrix.less_is_better else "more"
    relative = f", relative to {matrix.baseline}," if matrix.baseline else ""
    return table_of(
        f"{matrix.title.partition(' under')[0]} after the last step by scenario, mean over repeats, {better} "
        f"is better, and the worst of them; speed{relative} and payload of a step without faults; void: more "
        "workers are faulty than the rule is for, which does not count for the worst",
        ("strategy", *names, "worst", "speed", "payload"),
        [
            (
                Cell(text=line.strategy, note="on the front" if line.on_front else ""),
                *map(_fault_cell, line.cells),
                Cell(
                    text=MISSING if line.worst is None else _figure(line.worst),
                    value=line.worst if line.worst is not None and math.isfinite(line.worst) else None,
                ),
                Cell(text=times(line.relative_rate), note=line.relative_note, value=line.relative_rate),
                Cell(text=byte_count(line.payload_bytes), value=line.payload_bytes),
            )
            for line in matrix.lines
        ],
    )


def front_line(matrix: FaultMatrix) -> str:
    """What robustness buys and costs: the strategies than which none is both faster and better."""
    figures = [
        (line.worst, line) for line in matrix.lines if line.worst is not None and math.isfinite(line.worst)
    ]
    if not figures:
        return f"No strategy has a figure of {matrix.metric} under faults that its rule is for."
    figures.sort(key=lambda item: item[0], reverse=not matrix.less_is_better)
    front = [(worst, line) for worst, line in figures if line.on_front]
    start = f"The worst {matrix.metric} is best with"
    if not front:
        best = figures[0][0]
        names = " and ".join(line.strategy for worst, line in figures if worst == best)
        return f"{start} {names}, {_figure(best)}; speed without faults was not measured."
    points = ", or ".join(
        f"{line.strategy} with {_figure(worst)} at {times(line.relative_rate)} the speed"
        for worst, line in front
    )
    doubt = next((f" ({line.relative_note})" for _, line in front if "no interval" in line.relative_note), "")
    best_points = f"{start} {points} of {matrix.baseline or 'the baseline'}"
    return f"{best_points}{doubt}: no other is as fast and as good."


def _fault_cell(cell: FaultCell | None) -> Cell:
    if cell is None:
        return Cell(text=MISSING)
    void = "void" if cell.void else ""
    if cell.value is None:
        return Cell(text=cell.outcome, note=", ".join(filter(None, (void, cell.note))))
    note = ", ".join(filter(None, (void, f"n={cell.value.n}")))
    return Cell(text=_figure(cell.value.value), note=note, value=cell.value.value)


def _figure(value: float) -> str:
    """Three decimals of a share, and no dozen digits of a loss."""
    return f"{value:.3f}" if abs(value) < _MANY else f"{value:.2e}" if math.isfinite(value) else DIVERGED
