"""Tables behind curves over sizes and links, and behind the trade-off of rate and bytes."""

from __future__ import annotations

from dataclasses import replace

from reports.marks import WORDS
from reports.quantities import MISSING, digits, interval_of, link_rate, plain
from reports.rows import Comparison, LinkLine, LinkPoint, LinkSensitivity, Scaling, ScalingLine, TradeOffPoint
from reports.statistics import Estimate
from reports.tables.cells import Cell, estimate_cell, mean_cell
from reports.tables.table import Table, table_of


def scaling_table(scaling: Scaling) -> Table:
    """Rate and efficiency of each strategy at each number of devices."""
    sizes = sorted({(p.n_devices, p.workers, p.replicas) for line in scaling.lines for p in line.points})
    batch = f"{scaling.batch_size} examples" if scaling.batch_size else "the batch"
    kept = f"each replica takes {batch}" if scaling.kind == "weak" else f"all share {batch}"
    return table_of(
        f"{scaling.kind.capitalize()} scaling, {kept}: examples per second with 95 % interval, and as a "
        "share of as many times the reference's rate on one device",
        (
            "strategy",
            "mark",
            "reference",
            *(_size_name(workers, replicas) for _, workers, replicas in sizes),
        ),
        [(*_head(line), *(_point_cell(line, size) for size in sizes)) for line in scaling.lines],
        words=("mark", "reference"),
    )


def link_table(sensitivity: LinkSensitivity) -> Table:
    """Rate of each strategy at each rate of links, slowest first."""
    points = {point.requested_mbit: point for line in sensitivity.lines for point in line.points}
    rates = sorted(points, key=lambda mbit: float("inf") if mbit is None else mbit)
    return table_of(
        "Examples per second by the rate asked of links, with 95 % interval; in brackets what was measured "
        "of the links, mean over repeats",
        ("strategy", "mark", *(_link_name(points[mbit]) for mbit in rates)),
        [
            (
                Cell(text=line.strategy),
                Cell(text=WORDS[line.mark]),
                *(_rate_cell(line, mbit) for mbit in rates),
            )
            for line in sensitivity.lines
        ],
        words=("mark",),
    )


def trade_off_table(comparison: Comparison) -> Table | None:
    """Rate beside bytes of each strategy; None where there is nothing to weigh."""
    trade_off = comparison.curves.trade_off
    if trade_off is None:
        return None
    layer = "TCP measured" if trade_off.layer == "tcp" else "payload predicted"
    return table_of(
        "What speed costs in bytes, all workers together: one is behind where another that may win is as "
        "good in both, and shown by the repeats to be better in one; rates with 95 % interval, bytes with "
        "their range over repeats",
        ("strategy", "mark", "examples/s", f"{layer}, a step", "front"),
        [
            (
                Cell(text=point.strategy),
                Cell(text=WORDS[point.mark]),
                _estimate(point.rate),
                _sent_cell(point),
                Cell(text="on the front" if point.on_front else "behind" if point.can_win else "cannot win"),
            )
            for point in trade_off.points
        ],
        words=("mark", "front"),
    )


def _sent_cell(point: TradeOffPoint) -> Cell:
    cell = mean_cell(point.sent_bytes, unit="bytes")
    return replace(cell, text=f"at most {cell.text}") if point.is_bound else cell


def _size_name(workers: int, replicas: int) -> str:
    name = f"{workers} worker{'s' if workers != 1 else ''}"
    return name if replicas == 1 else f"{name} × {replicas}"


def _head(line: ScalingLine) -> tuple[Cell, ...]:
    devices = f"on {line.reference_devices} device{'s' if line.reference_devices != 1 else ''}"
    reference = "itself" if line.reference == line.strategy else line.reference
    return Cell(text=line.strategy), Cell(text=WORDS[line.mark]), Cell(text=reference, note=devices)


def _point_cell(line: ScalingLine, size: tuple[int, int, int]) -> Cell:
    point = next((p for p in line.points if (p.n_devices, p.workers, p.replicas) == size), None)
    if point is None:
        return Cell(text=MISSING)
    share = f"{100 * point.efficiency.value:.0f} %"
    if point.efficiency.interval is not None:
        low, high = point.efficiency.interval.low, point.efficiency.interval.high
        share = f"{share} ({100 * low:.0f}\N{EN DASH}{100 * high:.0f})"
    cell = _estimate(point.rate)
    return Cell(text=cell.text, note=f"{cell.note}, {share}", value=cell.value)


def _rate_cell(line: LinkLine, mbit: float | None) -> Cell:
    rate = next((point.rate for point in line.points if point.requested_mbit == mbit), None)
    return Cell(text=MISSING) if rate is None else _estimate(rate)


def _estimate(rate: Estimate) -> Cell:
    """A rate with its n and interval."""
    cell = estimate_cell(rate, plain)
    note = cell.note if rate.interval is None else f"n={rate.n}, {interval_of(rate)}"
    return Cell(text=cell.text, note=note, value=rate.value)


def _link_name(point: LinkPoint) -> str:
    asked = link_rate(point.requested_mbit)
    measured = point.measured_mbit
    return asked if measured is None else f"{asked} ({digits(measured.value)} measured, n={measured.n})"
