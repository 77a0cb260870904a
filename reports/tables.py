"""The tables of a report as text cells, the same for every medium; escaping is the medium's business."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reports.cells import Cell, estimate_cell, loss_cell, mean_cell, name_cell, ratio_cell
from reports.marks import WORDS
from reports.quantities import (
    MISSING,
    byte_count,
    digits,
    error,
    plain,
    seconds,
    spread_of,
)
from reports.rows import Comparison, Mean, Problem, Row, TimeSplit


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A heading; numeric columns are set flush right, and code between backticks in prose as code."""

    name: str
    numeric: bool = True
    prose: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells under headings; the first column names the row."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


def speed_table(comparison: Comparison) -> Table:
    """Ranking by examples per second."""
    against = f"÷ {comparison.baseline}" if comparison.baseline else "ratio"
    return _table(
        "Ranking by examples per second, from the median step of each repeat and over the whole window; "
        "95 % intervals",
        ("strategy", "rank", "mark", "examples/s", against, "n", "whole window", "status"),
        [_speed_cells(row) for row in comparison.rows],
        words=("mark", "status"),
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
    return _table(
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
    return _table(
        "Where one traced step's time goes, mean over workers: each moment counts once, as the first of "
        "computing, transfer, waiting and rest that it is; bandwidth is one replica's gradients, or what the "
        "busiest link carries one way, ÷ transfer in all of the worker that takes longest; mean and range "
        "over repeats",
        (
            "strategy",
            "traced step",
            "computing",
            "transfer",
            "waiting for workers",
            "rest",
            "transfer in all",
            "of it hidden",
            "transfers",
            "algorithm bandwidth",
            "bus bandwidth",
        ),
        [_trace_cells(row, split) for row, split in rows],
    )


def byte_table(comparison: Comparison) -> Table:
    """Bytes per step in three layers that are never mixed."""
    columns: list[tuple[str, Callable[[Row], Cell]]] = [
        ("strategy", name_cell),
        ("payload predicted", lambda row: mean_cell(row.payload_bytes, unit="bytes")),
        ("TCP measured", lambda row: mean_cell(row.tcp_bytes, unit="bytes")),
        ("interface measured", lambda row: mean_cell(row.interface_bytes, unit="bytes")),
        ("TCP ÷ payload", _overhead_cell),
    ]
    if any(row.between_hosts_bytes and row.between_hosts_bytes.high for row in comparison.rows):
        columns.append(("of TCP between hosts", lambda row: mean_cell(row.between_hosts_bytes, unit="bytes")))
    if any(row.resent_bytes and row.resent_bytes.high for row in comparison.rows):
        columns.append(("sent again", lambda row: mean_cell(row.resent_bytes, unit="bytes")))
    return _table(
        "Bytes sent per step, all workers together: mean and range over repeats",
        tuple(name for name, _ in columns),
        [tuple(cell(row) for _, cell in columns) for row in comparison.rows],
    )


def check_table(comparison: Comparison) -> Table:
    """Equivalence with the one-device reference, and the loss."""
    return _table(
        "Update error against the one-device reference, relative to the update, of the variable nearest to "
        "its limit; loss before the update of the step named, warm-up steps counted too: mean and range over "
        "repeats",
        ("strategy", "class", "mark", "update error", "its tolerance", "first timed loss", "last timed loss"),
        [_check_cells(row) for row in comparison.rows],
        words=("class", "mark"),
    )


def cost_table(comparison: Comparison) -> Table:
    """What a strategy costs beside time and bytes."""

    known: list[tuple[str, Callable[[Row], Cell]]] = [
        ("strategy", name_cell),
        ("CPU time of a step", lambda row: mean_cell(row.cpu_s, unit="seconds")),
    ]
    if any(row.package_j for row in comparison.rows):
        known.append(("energy of a step, J", lambda row: mean_cell(row.package_j)))
    if any(row.gpu_j or row.gpu_busy or row.gpu_own_bytes for row in comparison.rows):
        known += [
            ("energy of GPUs, J", lambda row: mean_cell(row.gpu_j)),
            ("GPUs busy, share", lambda row: mean_cell(row.gpu_busy)),
            ("largest worker's GPU memory", lambda row: Cell(text=byte_count(row.gpu_own_bytes))),
        ]
    if any(row.gpu_link_bytes for row in comparison.rows):
        known.append(("over NVLink", lambda row: mean_cell(row.gpu_link_bytes, unit="bytes")))
    if any(row.gpu_pcie_bytes for row in comparison.rows):
        known.append(("from GPUs over PCI Express", lambda row: mean_cell(row.gpu_pcie_bytes, unit="bytes")))
    if any(row.cost_per_million for row in comparison.rows):
        known.append(("cost of a million examples", _cost_cell))
    known += [
        ("graph rewrite", lambda row: mean_cell(row.transform_s, unit="seconds")),
        ("largest worker's memory", _memory_cell),
    ]
    return _table(
        "Other costs, all workers together unless said otherwise; energy is that of their hosts' processors: "
        "mean and range over repeats",
        tuple(name for name, _ in known),
        [tuple(cell(row) for _, cell in known) for row in comparison.rows],
    )


def _memory_cell(row: Row) -> Cell:
    return Cell(text=byte_count(row.peak_rss_bytes), note="largest of all repeats")


def _cost_cell(row: Row) -> Cell:
    cell = mean_cell(row.cost_per_million)
    if row.cost_per_million is None:
        return cell
    return Cell(text=cell.text, note=f"at {plain(row.price_per_hour)} an hour, {cell.note}")


def problem_table(problems: Sequence[Problem]) -> Table:
    """Repeats without a usable result."""
    names = ("strategy", "workload", "repeats", "status", "type", "stage", "message")

    def cells(item: Problem) -> tuple[Cell, ...]:
        repeats = ", ".join(str(repeat) for repeat in item.repeats)
        words = (repeats, item.status, item.type, item.stage, item.message)
        where = Cell(text=item.workload, note=item.shape)
        return (Cell(text=item.strategy), where, *(Cell(text=word) for word in words))

    return _table(
        "Failed, skipped and implausible repeats",
        names,
        [cells(item) for item in problems],
        words=names,
        prose=("message",),
    )


def _speed_cells(row: Row) -> tuple[Cell, ...]:
    return (
        name_cell(row),
        Cell(text=str(row.rank) if row.rank else MISSING, note=_why_no_rank(row)),
        Cell(text=WORDS[row.mark.kind]),
        estimate_cell(row.rate, plain),
        ratio_cell(row),
        Cell(text=str(row.n), note=f"of {row.n_repeats}" if row.n != row.n_repeats else ""),
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
        Cell(text=str(row.n)),
    )


def _trace_cells(row: Row, split: TimeSplit) -> tuple[Cell, ...]:
    def part(mean: Mean) -> Cell:
        share = f"{100 * mean.value / split.step_s.value:.0f} %, " if split.step_s.value else ""
        return Cell(text=seconds(mean.value), note=share + spread_of(mean, unit="seconds"))

    exclusive = (split.compute_s, split.transfer_s, split.wait_s, split.rest_s)
    return (
        name_cell(row),
        mean_cell(split.step_s, unit="seconds"),
        *(part(mean) for mean in (*exclusive, split.receiving_s)),
        _share_cell(split.hidden_share),
        mean_cell(split.n_transfers, unit="count"),
        mean_cell(split.algorithm_bytes_per_s, unit="bandwidth"),
        mean_cell(split.bus_bytes_per_s, unit="bandwidth"),
    )


def _share_cell(share: Mean | None) -> Cell:
    if share is None:
        return Cell(text=MISSING)
    low, high = (f"{100 * limit:.0f}" for limit in (share.low, share.high))
    return Cell(text=f"{100 * share.value:.0f} %", note=f"n={share.n}, {low}\N{EN DASH}{high} %")


def _overhead_cell(row: Row) -> Cell:
    overhead = row.tcp_over_payload
    return Cell(text=MISSING if overhead is None else digits(overhead, significant=4))


def _check_cells(row: Row) -> tuple[Cell, ...]:
    noise = "" if row.mark.noise_floor is None else f"rounding alone {error(row.mark.noise_floor)}"
    return (
        name_cell(row),
        Cell(text=row.class_),
        Cell(text=WORDS[row.mark.kind], note=row.mark.explanation),
        Cell(text=error(row.mark.max_update_error)),
        Cell(text=error(row.mark.tolerance), note=noise),
        loss_cell(row.loss_first, row.loss_first_step),
        loss_cell(row.loss_last, row.loss_last_step),
    )


def _table(
    caption: str,
    names: tuple[str, ...],
    rows: list[tuple[Cell, ...]],
    *,
    words: tuple[str, ...] = (),
    prose: tuple[str, ...] = (),
) -> Table:
    columns = tuple(
        Column(name=name, numeric=i > 0 and name not in words, prose=name in prose)
        for i, name in enumerate(names)
    )
    return Table(caption=caption, columns=columns, rows=tuple(rows))


def _why_no_rank(row: Row) -> str:
    if row.rank:
        return ""
    if row.status != "ok":
        return row.status
    return WORDS[row.mark.kind] if not row.mark.proven else "no interval"
