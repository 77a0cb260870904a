"""Tables of rules of aggregation: what they cost, whom they chose, and what they come to under faults."""

from __future__ import annotations

import math

from reports.curves.fault_matrix import DIVERGED
from reports.quantities import MISSING, byte_count, digits, seconds, times
from reports.rows import Comparison, FaultCell, FaultMatrix, Row, RuleUse
from reports.tables.table import Cell, Table, estimate_cell, mean_cell, name_cell, table_of

_MANY = 1e5


def rule_table(comparison: Comparison) -> Table | None:
    """What rules cost and did; None where no strategy here combines gradients by one."""
    rows = [(row, row.rule) for row in comparison.rows if row.rule is not None]
    if not rows:
        return None
    return table_of(
        "Rules of aggregation: what combining the gradients of all workers takes by itself, beside a plain "
        "mean of the same vectors and as a share of the median step; contributions that were not finite, in "
        "a step on average; in how many steps of a hundred each worker had a part in the result",
        ("strategy", "rule", "combining", "÷ plain mean", "of a step", "not finite", "chosen, by worker"),
        [_rule_cells(row, use) for row, use in rows],
        words=("rule", "chosen, by worker"),
    )


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


def _rule_cells(row: Row, use: RuleUse) -> tuple[Cell, ...]:
    faulty = f", {use.n_faulty} faulty" if use.n_faulty else ""
    void = "void" if use.n_faulty > use.f else ""
    rule = Cell(text=f"{use.rule}, f={use.f} of {use.n}{faulty}", note=void)
    return (
        name_cell(row),
        rule,
        mean_cell(use.rule_s, unit="seconds"),
        mean_cell(use.over_mean),
        _percent(use, row),
        Cell(text=MISSING if use.not_finite is None else digits(use.not_finite), value=use.not_finite),
        Cell(text=_by_worker(use)),
    )


def _percent(use: RuleUse, row: Row) -> Cell:
    step = estimate_cell(row.p50_s, seconds)
    if use.rule_s is None or row.p50_s is None:
        return Cell(text=MISSING)
    share = use.rule_s.value / row.p50_s.value
    return Cell(text=f"{100 * share:.0f} %", note=f"of {step.text}", value=share)


def _by_worker(use: RuleUse) -> str:
    if use.chosen is None:
        return MISSING
    if not use.selects:
        return "all that are finite"
    return " ".join(f"{100 * share:.0f}" for share in use.chosen)


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
