"""Tables of what a step sends, and of what it costs beside time and bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from reports.quantities import MISSING, byte_count, digits, plain
from reports.rows import Comparison, Row
from reports.tables.table import Cell, Table, mean_cell, name_cell, table_of


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
    return table_of(
        "Bytes sent per step, all workers together: mean and range over repeats",
        tuple(name for name, _ in columns),
        [tuple(cell(row) for _, cell in columns) for row in comparison.rows],
    )


def cost_table(comparison: Comparison) -> Table:
    """What a strategy costs beside time and bytes."""

    known: list[tuple[str, Callable[[Row], Cell]]] = [
        ("strategy", name_cell),
        ("CPU time of a step", lambda row: mean_cell(row.cpu_s, unit="seconds")),
    ]
    if any(row.package_j for row in comparison.rows):
        known.append(("energy of a step, J", lambda row: mean_cell(row.package_j)))
    if any(row.gpu_j or row.gpu_busy or row.gpu_own_bytes or row.gpu_peak_bytes for row in comparison.rows):
        known += [
            ("energy of GPUs, J", lambda row: mean_cell(row.gpu_j)),
            ("GPUs busy, share", lambda row: mean_cell(row.gpu_busy)),
            ("largest worker's GPU memory", _gpu_memory_cell),
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
    return table_of(
        "Other costs, all workers together unless said otherwise; energy is that of their hosts' processors: "
        "mean and range over repeats",
        tuple(name for name, _ in known),
        [tuple(cell(row) for _, cell in known) for row in comparison.rows],
    )


def _overhead_cell(row: Row) -> Cell:
    overhead = row.tcp_over_payload
    return Cell(text=MISSING if overhead is None else digits(overhead, significant=4), value=overhead)


def _bytes_cell(n_bytes: float | None, note: str = "") -> Cell:
    return Cell(text=byte_count(n_bytes), note=note, value=n_bytes)


def _gpu_memory_cell(row: Row) -> Cell:
    if row.gpu_peak_bytes is None:
        return _bytes_cell(row.gpu_own_bytes, "held when windows ended" if row.gpu_own_bytes else "")
    return _bytes_cell(row.gpu_peak_bytes, "peak of TensorFlow's allocator")


def _memory_cell(row: Row) -> Cell:
    return _bytes_cell(row.peak_rss_bytes, "largest of all repeats")


def _cost_cell(row: Row) -> Cell:
    cell = mean_cell(row.cost_per_million)
    if row.cost_per_million is None:
        return cell
    return replace(cell, note=f"at {plain(row.price_per_hour)} an hour, {cell.note}")
