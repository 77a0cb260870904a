"""Tables behind charts: scaling, links, trade-offs, losses, memory and faults."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from reports.curves.fault_matrix import DIVERGED
from reports.marks import mark_text
from reports.quantities import (
    MISSING,
    Cell,
    Table,
    byte_count,
    count,
    digits,
    estimate_cell,
    interval_of,
    link_rate,
    mean_cell,
    seconds,
    table_of,
    times,
)
from reports.rows.report import (
    Comparison,
    FaultCell,
    FaultMatrix,
    LinkLine,
    LinkPoint,
    LinkSensitivity,
    LossCurve,
    Scaling,
    ScalingLine,
    TradeOffPoint,
    WorkerMemory,
)
from reports.statistics import Estimate


def scaling_table(scaling: Scaling) -> Table:
    """Rate and efficiency of each strategy at each number of devices."""
    sizes = sorted({(p.n_devices, p.workers, p.replicas) for line in scaling.lines for p in line.points})
    batch = f"{scaling.batch_size} examples" if scaling.batch_size else "the batch"
    shared = f"{batch} per replica" if scaling.kind == "weak" else f"{batch} in total"
    return table_of(
        f"{scaling.kind.capitalize()} scaling, {shared}: examples per second; efficiency: rate per "
        "device ÷ that of the reference; 95 % CI",
        (
            "strategy",
            "correct",
            "reference",
            *(_size_name(workers, replicas) for _, workers, replicas in sizes),
        ),
        [(*_head(line), *(_point_cell(line, size) for size in sizes)) for line in scaling.lines],
        words=("correct", "reference"),
    )


def link_table(sensitivity: LinkSensitivity) -> Table:
    """Rate of each strategy at each rate of links, slowest first."""
    points = {point.requested_mbit: point for line in sensitivity.lines for point in line.points}
    rates = sorted(points, key=lambda mbit: float("inf") if mbit is None else mbit)
    return table_of(
        "Examples per second by requested link rate, with 95 % CI; in brackets: measured link rate",
        ("strategy", "correct", *(_link_name(points[mbit]) for mbit in rates)),
        [
            (
                Cell(text=line.strategy),
                Cell(text=mark_text(line.mark)),
                *(_rate_cell(line, mbit) for mbit in rates),
            )
            for line in sensitivity.lines
        ],
        words=("correct",),
    )


def trade_off_table(comparison: Comparison) -> Table | None:
    """Rate and bytes of each strategy; None without a trade-off."""
    trade_off = comparison.curves.trade_off
    if trade_off is None:
        return None
    layer = "TCP measured" if trade_off.layer == "tcp" else "payload predicted"
    return table_of(
        "Examples per second and bytes per step of all workers. Dominated: another strategy is at least as "
        "good in both and significantly better in one",
        ("strategy", "correct", "examples/s", f"{layer}, a step", "front"),
        [
            (
                Cell(text=point.strategy),
                Cell(text=mark_text(point.mark)),
                _estimate(point.rate),
                _sent_cell(point),
                Cell(
                    text="Pareto front" if point.on_front else "dominated" if point.can_win else "cannot win"
                ),
            )
            for point in trade_off.points
        ],
        words=("correct", "front"),
    )


def _sent_cell(point: TradeOffPoint) -> Cell:
    cell = mean_cell(point.sent_bytes, "bytes")
    return replace(cell, text=f"at most {cell.text}") if point.is_bound else cell


def _size_name(workers: int, replicas: int) -> str:
    name = f"{workers} worker{'s' if workers != 1 else ''}"
    return name if replicas == 1 else f"{name} × {replicas}"


def _head(line: ScalingLine) -> tuple[Cell, ...]:
    devices = f"on {line.reference_devices} device{'s' if line.reference_devices != 1 else ''}"
    reference = "itself" if line.reference == line.strategy else line.reference
    return Cell(text=line.strategy), Cell(text=mark_text(line.mark)), Cell(text=reference, note=devices)


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
    cell = estimate_cell(rate)
    note = cell.note if rate.interval is None else f"n = {rate.n}, {interval_of(rate)}"
    return Cell(text=cell.text, note=note, value=rate.value)


def _link_name(point: LinkPoint) -> str:
    requested = link_rate(point.requested_mbit)
    measured = point.measured_mbit
    return (
        requested
        if measured is None
        else f"{requested} ({digits(measured.value)} measured, n = {measured.n})"
    )


_SHARES = {
    "first": 0.0,
    "about a quarter": 0.25,
    "about half": 0.5,
    "about three quarters": 0.75,
    "last": 1.0,
}
_NEAR = 0.125
"""Largest distance of a loss from a share of its curve to be shown there; no loss is near two shares."""


def loss_table(comparison: Comparison) -> Table | None:
    """Table of losses at up to five steps of each curve; None if no losses are stored."""
    curves = comparison.curves.losses
    if not curves:
        return None
    # Short curves have nothing near some shares, and columns without any loss are none.
    shares = {
        name: share
        for name, share in _SHARES.items()
        if any(_place_near(share, len(curve.mean)) is not None for curve in curves)
    }
    return table_of(
        "Loss by step and by time at the median step, mean and range over repeats; warm-up included",
        ("strategy", "n", *shares),
        [
            (
                Cell(text=curve.strategy),
                Cell(text=str(curve.n), value=curve.n),
                *(_loss_cell(curve, _place_near(share, len(curve.mean))) for share in shares.values()),
            )
            for curve in curves
        ],
    )


def _place_near(share: float, n: int) -> int | None:
    """Index nearest to a share of n values; None if none is near."""
    place = round(share * (n - 1))
    return place if abs(place / (n - 1) - share) <= _NEAR else None


def _loss_cell(curve: LossCurve, place: int | None) -> Cell:
    if place is None:
        return Cell(text=MISSING)
    loss = curve.mean[place]
    when = f"step {count(curve.at_steps[place])}, {seconds(curve.at_s[place])}"
    if loss is None:
        return Cell(text="not finite", note=when)
    low, high = (limit[place] if limit else None for limit in (curve.low, curve.high))
    spread = "" if low is None or high is None else f", {digits(low)}\N{EN DASH}{digits(high)}"
    return Cell(text=digits(loss), note=f"{when}{spread}", value=loss)


def memory_table(comparison: Comparison) -> Table | None:
    """Table of memory of the largest and the smallest worker; None if not recorded."""
    if not comparison.curves.memory:
        return None
    return table_of(
        "Peak resident memory of workers, mean and range over repeats; bytes of variables and slots",
        ("strategy", "workers", "largest", "smallest", "variables, largest", "variables, smallest", "n"),
        [
            (
                Cell(text=memory.strategy),
                Cell(text=str(len(memory.peak_bytes)), value=len(memory.peak_bytes)),
                _peak_cell(memory, _largest(memory.peak_bytes)),
                _peak_cell(memory, _largest([None if b is None else -b for b in memory.peak_bytes])),
                *_limits(memory.variable_bytes),
                Cell(text=str(memory.n)),
            )
            for memory in comparison.curves.memory
        ],
    )


def _peak_cell(memory: WorkerMemory, worker: int) -> Cell:
    low, high = (limit[worker] if limit else None for limit in (memory.low, memory.high))
    spread = "" if low is None else f", {byte_count(low)}\N{EN DASH}{byte_count(high)}"
    peak = memory.peak_bytes[worker]
    return Cell(text=byte_count(peak), note=f"worker {worker}{spread}", value=peak)


def _limits(values: Sequence[int | None] | None) -> tuple[Cell, Cell]:
    known = [value for value in values or () if value is not None]
    largest, smallest = max(known, default=None), min(known, default=None)
    return Cell(text=byte_count(largest), value=largest), Cell(text=byte_count(smallest), value=smallest)


def _largest(values: Sequence[int | None]) -> int:
    return max(
        (place for place, value in enumerate(values) if value is not None),
        key=lambda place: values[place] or 0,
    )


_MANY = 1e5


def fault_table(matrix: FaultMatrix) -> Table:
    """A metric by strategy and scenario, with what each strategy costs without faults."""
    names = [name for name, _ in matrix.scenarios]
    better = "less" if matrix.less_is_better else "more"
    relative = f", relative to {matrix.baseline}," if matrix.baseline else ""
    return table_of(
        f"{matrix.title.partition(' under')[0]} after the last step, mean over repeats ({better} is better); "
        f"speed{relative} and payload without faults. Void: more faulty workers than the rule tolerates, not "
        "counted in the worst",
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
    """Strategies that none beats in both speed and worst result under faults, with these figures."""
    figures = [
        (line.worst, line) for line in matrix.lines if line.worst is not None and math.isfinite(line.worst)
    ]
    if not figures:
        return f"No {matrix.metric} under faults that any rule tolerates."
    figures.sort(key=lambda item: item[0], reverse=not matrix.less_is_better)
    front = [(worst, line) for worst, line in figures if line.on_front]
    if not front:
        best = figures[0][0]
        names = ", ".join(line.strategy for worst, line in figures if worst == best)
        return f"Best worst-case {matrix.metric}: {names} ({_figure(best)}); speed was not measured."
    doubt = next((f"; {line.relative_note}" for _, line in front if "no interval" in line.relative_note), "")
    points = ", ".join(
        f"{line.strategy} ({_figure(worst)} at {times(line.relative_rate)})" for worst, line in front
    )
    return (
        f"Best worst-case {matrix.metric} for its speed: {points}; speed relative to "
        f"{matrix.baseline or 'the baseline'} without faults{doubt}."
    )


def _fault_cell(cell: FaultCell | None) -> Cell:
    if cell is None:
        return Cell(text=MISSING)
    void = "void" if cell.void else ""
    if cell.value is None:
        return Cell(text=cell.outcome, note=", ".join(filter(None, (void, cell.note))))
    note = ", ".join(filter(None, (void, f"n = {cell.value.n}")))
    return Cell(text=_figure(cell.value.value), note=note, value=cell.value.value)


def _figure(value: float) -> str:
    """Three decimals of a share, and no dozen digits of a loss."""
    return f"{value:.3f}" if abs(value) < _MANY else f"{value:.2e}" if math.isfinite(value) else DIVERGED
