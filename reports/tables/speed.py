"""Tables of how fast strategies are, and where the time of their steps goes."""

from __future__ import annotations

from reports.marks import WORDS, mark_words
from reports.quantities import MISSING, plain, seconds, spread_of
from reports.rows import Comparison, Mean, Row, TimeSplit
from reports.tables.table import Cell, Table, estimate_cell, mean_cell, name_cell, ratio_cell, table_of


def speed_table(comparison: Comparison) -> Table:
    """Ranking by examples per second."""
    against = f"÷ {comparison.baseline}" if comparison.baseline else "ratio"
    return table_of(
        "Ranking by examples per second, from the median step of each repeat and over the whole window; "
        "95 % intervals",
        ("strategy", "rank", "mark", "examples/s", against, "n", "whole window", "status"),
        [_speed_cells(row) for row in comparison.rows],
        words=("mark", "status"),
        keys={against: "ratio"},
    )


def step_table(comparison: Comparison) -> Table:
    """Percentiles of the step time and what it is spent on."""
    cells = [_step_cells(row) for row in comparison.rows]
    names: tuple[str, ...] = (
        "strategy",
        "step p50",
        "p90",
        "p99",
        "exposed communication",
        "codec",
        "warm-up steps",
        "n",
    )
    if comparison.link_measured_mbit:
        names = (*names, "computing + bytes ÷ link rate", "step ÷ that")
        cells = [
            (*line, mean_cell(row.predicted_step_s, unit="seconds"), mean_cell(row.step_over_predicted))
            for line, row in zip(cells, comparison.rows, strict=True)
        ]
    if any(row.input_s for row in comparison.rows):
        names = (*names, "waiting for input")
        cells = [(*line, _input_cell(row)) for line, row in zip(cells, comparison.rows, strict=True)]
    return table_of(
        "Step time: geometric mean over repeats of each repeat's percentile, with 95 % interval; "
        "its parts: mean and range over repeats",
        names,
        cells,
    )


def trace_table(comparison: Comparison) -> Table | None:
    """Where a traced step's time goes; None where no step was traced."""
    rows = [(row, row.time_split) for row in comparison.rows if row.time_split is not None]
    if not rows:
        return None
    on_gpu = any(split.host_s for _, split in rows)
    return table_of(
        "Where one traced step's time goes, mean over workers: each moment counts once, as the first of "
        f"computing, transfer, {'host, ' if on_gpu else ''}waiting and rest that it is; bandwidth is one "
        "replica's gradients, or what the busiest link carries one way, ÷ transfer in all of the worker that "
        "takes longest; mean and range over repeats",
        (
            "strategy",
            "traced step",
            "computing",
            "transfer",
            *(("copies in it", "host") if on_gpu else ()),
            "waiting for workers",
            "rest",
            "transfer in all",
            "of it hidden",
            "transfers",
            "algorithm bandwidth",
            "bus bandwidth",
        ),
        [_trace_cells(row, split, on_gpu=on_gpu) for row, split in rows],
    )


def _speed_cells(row: Row) -> tuple[Cell, ...]:
    return (
        name_cell(row),
        Cell(text=str(row.rank) if row.rank else MISSING, note=_why_no_rank(row), value=row.rank),
        Cell(text=mark_words(row)),
        estimate_cell(row.rate, plain),
        ratio_cell(row),
        Cell(text=str(row.n), note=f"of {row.n_repeats}" if row.n != row.n_repeats else "", value=row.n),
        estimate_cell(row.window_rate, plain),
        Cell(text=row.status),
    )


def _step_cells(row: Row) -> tuple[Cell, ...]:
    return (
        name_cell(row),
        *(estimate_cell(figure, seconds) for figure in (row.p50_s, row.p90_s, row.p99_s)),
        mean_cell(row.exposed_comm_s, unit="seconds"),
        mean_cell(row.codec_s, unit="seconds"),
        mean_cell(row.warmup_steps, unit="count"),
        Cell(text=str(row.n), value=row.n),
    )


def _input_cell(row: Row) -> Cell:
    cell = mean_cell(row.input_s, unit="seconds")
    if row.input_share is None:
        return cell
    note = f"{100 * row.input_share.value:.0f} % of the steps, {cell.note}"
    return Cell(text=cell.text, note=note, value=cell.value)


def _trace_cells(row: Row, split: TimeSplit, *, on_gpu: bool) -> tuple[Cell, ...]:
    def part(mean: Mean | None) -> Cell:
        if mean is None:
            return Cell(text=MISSING)
        share = f"{100 * mean.value / split.step_s.value:.0f} %, " if split.step_s.value else ""
        note = share + spread_of(mean, unit="seconds")
        return Cell(text=seconds(mean.value), note=note, value=mean.value)

    of_host = (split.copy_s, split.host_s) if on_gpu else ()
    parts = (split.compute_s, split.transfer_s, *of_host, split.wait_s, split.rest_s, split.receiving_s)
    return (
        name_cell(row),
        mean_cell(split.step_s, unit="seconds"),
        *map(part, parts),
        _share_cell(split.hidden_share),
        mean_cell(split.n_transfers, unit="count"),
        mean_cell(split.algorithm_bytes_per_s, unit="bandwidth"),
        mean_cell(split.bus_bytes_per_s, unit="bandwidth"),
    )


def _share_cell(share: Mean | None) -> Cell:
    if share is None:
        return Cell(text=MISSING)
    low, high = (f"{100 * limit:.0f}" for limit in (share.low, share.high))
    note = f"n={share.n}, {low}\N{EN DASH}{high} %"
    return Cell(text=f"{100 * share.value:.0f} %", note=note, value=share.value)


def _why_no_rank(row: Row) -> str:
    if row.rank:
        return ""
    if row.status != "ok":
        return row.status
    return WORDS[row.mark.kind] if not row.mark.proven else "no interval"
