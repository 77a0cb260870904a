"""Tables of figures by strategy: sections, each with the columns that the table of figures gives it.

Columns that are no figure, such as ranks and marks, are added here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from reports.curves.residuals import predicted_rows
from reports.marks import mark_text, mark_words, why_unranked
from reports.quantities import (
    MISSING,
    Cell,
    Heading,
    Table,
    digits,
    error,
    estimate_cell,
    interval_of,
    number_cell,
    percent,
    times,
)
from reports.rows.figure import Figure
from reports.rows.report import Comparison
from reports.rows.row import Row, RuleUse, all_figures


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    heading: Heading
    place: int
    cell: Callable[[Row], Cell]


def speed_table(comparison: Comparison) -> Table:
    """Ranking by examples per second."""
    against = f"÷ {comparison.baseline}" if comparison.baseline else "ratio"
    usual_name = _words("usual name", 0, lambda row: Cell(text=row.usual_name or MISSING))
    return _table(
        comparison,
        "speed",
        "Examples per second by the median step and over the whole window, with 95 % CI",
        *([usual_name] if any(row.usual_name for row in comparison.rows) else []),
        _column("rank", 1, _rank_cell),
        _words("correct", 2, lambda row: Cell(text=mark_words(row))),
        _column(against, 4, ratio_cell, key="ratio"),
        _column("n", 5, _repeats_cell),
    )


def step_table(comparison: Comparison) -> Table:
    """Percentiles of the step time and what it is spent on."""
    return _table(
        comparison,
        "steps",
        "Step time percentiles, geometric mean over repeats with 95 % CI; other columns: mean and "
        "range over repeats",
        _column("n", 7, lambda row: Cell(text=str(row.n), value=row.n)),
    )


def trace_table(comparison: Comparison) -> Table | None:
    """Table of a traced step's time by activity; None if no step was traced."""
    rows = [row for row in comparison.rows if row.time_split is not None]
    if not rows:
        return None
    return _table(
        comparison,
        "traced",
        "One traced step, mean over workers; each moment counts once; mean and range over repeats. "
        "Bandwidth: gradients of one replica (algorithm) or bytes of the busiest link (bus) ÷ transfer",
        rows=rows,
    )


def byte_table(comparison: Comparison) -> Table:
    """Bytes per step in three layers that are never mixed."""
    return _table(comparison, "bytes", "Bytes sent per step by all workers, mean and range over repeats")


def cost_table(comparison: Comparison) -> Table:
    """Processor time, energy, memory and price of each strategy."""
    return _table(
        comparison,
        "costs",
        "Costs of all workers together, energy of their hosts' processors; mean and range over repeats",
    )


def check_table(comparison: Comparison) -> Table:
    """Equivalence with the one-device reference, and the loss."""
    return _table(
        comparison,
        "checks",
        "Error of the variable nearest to its tolerance, relative to its update, against one device; "
        "loss before the update of the named step, warm-up included",
        _words("class", 1, lambda row: Cell(text=row.class_)),
        _words("correct", 2, lambda row: Cell(text=mark_text(row.mark.kind), note=row.mark.explanation)),
        _column("update error", 3, lambda row: _error_cell(row.mark.max_update_error)),
        _column("its tolerance", 4, _tolerance_cell),
    )


def reshard_table(comparison: Comparison) -> Table | None:
    """Table of resharding per host loop; None if no strategy shards variables."""
    if not any(row.resharding for row in comparison.rows):
        return None
    return _table(
        comparison,
        "resharding",
        "Resharding per replica and host loop: requested before each step, made, undone; bytes sent by all "
        "replicas, memory of sharded variables; mean and range over repeats",
        _column("median step", 1, lambda row: estimate_cell(row.p50_s, "seconds")),
    )


def rule_table(comparison: Comparison) -> Table | None:
    """Table of aggregation rules' costs and choices; None if no strategy uses one."""
    rows = [row for row in comparison.rows if row.rule is not None]
    if not rows:
        return None
    return _table(
        comparison,
        "rules",
        "Time to combine all workers' gradients, against a plain mean and as a share of the median step; "
        "gradients per step that were not finite; percent of steps that used each worker's gradients",
        _words("rule", 1, lambda row: _rule_cell(row.rule)),
        _column("of a step", 4, _share_of_step_cell),
        _words("chosen, by worker", 6, lambda row: Cell(text=_chosen_by_worker(row.rule))),
        rows=rows,
    )


def prediction_table(comparison: Comparison) -> Table | None:
    """Table of predicted and measured steps; None if no case was predicted."""
    rows = predicted_rows(comparison)
    if not rows:
        return None
    return _table(
        comparison,
        "predictions",
        "Duration of a step, predicted from the profile of the control and the probe of this machine, with "
        "its 95 % interval; measured: median step with its interval; error: predicted ÷ measured − 1",
        _column("measured", 2, lambda row: estimate_cell(row.p50_s, "seconds")),
        _column("error", 3, _prediction_error_cell),
        _words("limited by", 4, _limit_cell),
        rows=rows,
    )


def name_cell(row: Row) -> Cell:
    """The strategy of a row."""
    return Cell(text=row.strategy, note="baseline" if row.is_baseline else "")


def ratio_cell(row: Row) -> Cell:
    """Speed relative to the baseline, with its interval and p-value."""
    if row.is_baseline:
        return Cell(text="1", note="baseline", value=1.0)
    if row.ratio is None:
        return Cell(text=MISSING)
    p_value = f"p={digits(row.ratio.p_value, significant=2)}" if row.ratio.p_value is not None else ""
    note = ", ".join(filter(None, (interval_of(row.ratio), p_value)))
    value = row.ratio.value if math.isfinite(row.ratio.value) else None
    return Cell(text=times(row.ratio.value), note=note, value=value)


def _table(
    comparison: Comparison, section: str, caption: str, *others: _Column, rows: Sequence[Row] | None = None
) -> Table:
    columns = [_words("strategy", 0, name_cell), *others, *_figure_columns(comparison, section)]
    columns.sort(key=lambda column: column.place)
    return Table(
        caption=caption,
        columns=tuple(column.heading for column in columns),
        rows=tuple(tuple(column.cell(row) for column in columns) for row in rows or comparison.rows),
    )


def _figure_columns(comparison: Comparison, section: str) -> list[_Column]:
    columns = []
    for part, figure in all_figures():
        column = figure.column
        if column is None or column.section != section:
            continue
        when = _has(part, figure) if column.if_any else column.when
        if when is None or when(comparison):
            columns.append(_column(column.heading, column.place, _cell_of(figure.cell, part)))
    return columns


def _has(part: str, figure: Figure) -> Callable[[Comparison], bool]:
    def has(comparison: Comparison) -> bool:
        owners = (getattr(row, part) if part else row for row in comparison.rows)
        return any(owner is not None and getattr(owner, figure.name) is not None for owner in owners)

    return has


def _cell_of(cell: Callable[[object], Cell], part: str) -> Callable[[Row], Cell]:
    return (lambda row: cell(getattr(row, part))) if part else cell


def _column(
    name: str, place: int, cell: Callable[[Row], Cell], *, key: str = "", numeric: bool = True
) -> _Column:
    return _Column(heading=Heading(name=name, key=key, numeric=numeric), place=place, cell=cell)


_words = partial(_column, numeric=False)


def _rank_cell(row: Row) -> Cell:
    return Cell(text=str(row.rank or MISSING), note=why_unranked(row), value=row.rank)


def _repeats_cell(row: Row) -> Cell:
    return Cell(text=str(row.n), note=f"of {row.n_repeats}" if row.n != row.n_repeats else "", value=row.n)


def _error_cell(value: float | None, note: str = "") -> Cell:
    return Cell(text=error(value), note=note, value=value)


def _tolerance_cell(row: Row) -> Cell:
    noise = "" if row.mark.noise_floor is None else f"rounding alone {error(row.mark.noise_floor)}"
    return _error_cell(row.mark.tolerance, noise)


def _prediction_error_cell(row: Row) -> Cell:
    assert row.prediction_error is not None
    return Cell(text=percent(row.prediction_error, signed=True), value=row.prediction_error)


def _limit_cell(row: Row) -> Cell:
    assert row.predicted_step_s is not None
    beyond = ", ".join(row.predicted_step_s.extrapolated)
    return Cell(
        text=row.predicted_step_s.limited_by, note=f"beyond what was measured: {beyond}" if beyond else ""
    )


def _rule_cell(use: RuleUse | None) -> Cell:
    if use is None:
        return Cell(text=MISSING)
    faulty = f", {use.n_faulty} faulty" if use.n_faulty else ""
    return Cell(text=f"{use.rule}, f={use.f} of {use.n}{faulty}", note="void" if use.n_faulty > use.f else "")


def _share_of_step_cell(row: Row) -> Cell:
    if row.rule is None or row.rule.rule_s is None or row.p50_s is None:
        return Cell(text=MISSING)
    share = row.rule.rule_s.value / row.p50_s.value
    step = number_cell(row.p50_s.value, "seconds").text
    return Cell(text=f"{100 * share:.0f} %", note=f"of {step}", value=share)


def _chosen_by_worker(use: RuleUse | None) -> str:
    if use is None or use.chosen is None:
        return MISSING
    if not use.selects:
        return "all that are finite"
    return " ".join(f"{100 * share:.0f}" for share in use.chosen)
