"""Charts of curves: over sizes, links, steps and rounds; of trade-offs; of what each worker takes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from reports.figures.charts import mark_kind
from reports.figures.specification import (
    Axis,
    Bar,
    BarChart,
    Event,
    Lane,
    Line,
    LineChart,
    Point,
    PointChart,
)
from reports.quantities import byte_count, interval_of, link_rate, plain, spread_of, times
from reports.rows import Comparison, LinkLine, LinkSensitivity, LossCurve, Scaling, ScalingLine, ScalingPoint
from reports.statistics import Estimate

_LOG_FROM = 20.0
"""Ratio of the largest loss to the smallest from which on the axis is logarithmic."""


def trade_off(comparison: Comparison) -> PointChart | None:
    """Rate against bytes per step; None where there is nothing to weigh."""
    figures = comparison.curves.trade_off
    if figures is None:
        return None
    layer = "TCP" if figures.layer == "tcp" else "predicted payload"
    return PointChart(
        label=f"Examples per second against bytes per step ({layer}) on {comparison.workload}, by strategy",
        x=Axis(name=f"bytes per step ({layer}), less is better", unit="bytes", low=0.0),
        y=Axis(name="examples per second", unit="number", low=0.0),
        points=tuple(
            Point(
                key=point.strategy,
                name=f"{point.strategy}, at most" if point.is_bound else point.strategy,
                x=point.sent_bytes.value,
                y=point.rate.value,
                kind="front" if point.on_front else "behind",
                tip=f"{point.strategy}: {_rate(point.rate)}, {'at most ' if point.is_bound else ''}"
                f"{byte_count(point.sent_bytes.value)} a step "
                f"({spread_of(point.sent_bytes, unit='bytes')})",
            )
            for point in figures.points
        ),
        front="on the front: no other that may win is shown to beat it",
        behind="behind: another is as good in both, and shown by the repeats to be better in one; "
        "or cannot win",
        joined=True,
    )


def losses_by_step(comparison: Comparison) -> LineChart | None:
    """Loss over the number of the step; None where no losses are stored."""
    return _losses(comparison, "step, those of the warm-up counted too", by_second=False)


def losses_by_second(comparison: Comparison) -> LineChart | None:
    """Loss over seconds of training; None where no losses are stored."""
    return _losses(comparison, "seconds of training, at the median step", by_second=True)


def rounds_over_time(comparison: Comparison) -> LineChart | None:
    """Each window's steps relative to the strategy's own median; None without rounds."""
    rounds = comparison.curves.rounds
    if rounds is None or len(rounds.repeats) < 2:
        return None
    colors = _colors([row.strategy for row in comparison.rows])
    names = [
        f"repeat {repeat}, round {number}"
        for repeat, number in zip(rounds.repeats, rounds.numbers, strict=True)
    ]
    begins = [0, *(i for i in range(1, len(names)) if rounds.repeats[i] != rounds.repeats[i - 1])]
    return LineChart(
        label=f"Step time of each round relative to the strategy's own median on {comparison.workload}",
        x=Axis(name="rounds in the order of time", unit="number", low=0.0, high=len(names) - 1.0),
        y=Axis(name="step time ÷ own median", unit="times"),
        lines=tuple(
            Line(
                key=line.strategy,
                name=line.strategy,
                color=colors[line.strategy],
                points=tuple((float(i), value) for i, value in enumerate(line.relative)),
                tips=tuple(
                    f"{line.strategy}, {name}: {times(value)} its median step"
                    for name, value in zip(names, line.relative, strict=True)
                ),
            )
            for line in rounds.lines
        ),
        events=tuple(Event(x=float(i), text=f"repeat {rounds.repeats[i]}") for i in begins),
        low_height=True,
    )


def memory(comparison: Comparison) -> BarChart | None:
    """Peak memory of the largest worker, and variables in it; None where it is not stored."""
    marks = {row.strategy: mark_kind(row) for row in comparison.rows}
    lanes = []
    for each in comparison.curves.memory:
        bars = []
        layers = (
            ("resident", "peak", each.peak_bytes),
            ("variables", "variables", each.variable_bytes or ()),
        )
        for kind, name, workers in layers:
            known = [n_bytes for n_bytes in workers if n_bytes is not None]
            if known:
                span = f"{byte_count(min(known))} to {byte_count(max(known))}" if len(known) > 1 else ""
                text = f"{name} {byte_count(max(known))}"
                tip = f"{each.strategy}: {text}{f', workers from {span}' if span else ''}, n={each.n}"
                bars.append(
                    Bar(kind=kind, end=float(max(known)), tip=tip, text=text, short=byte_count(max(known)))
                )
        lanes.append(Lane(key=each.strategy, name=each.strategy, mark=marks[each.strategy], bars=tuple(bars)))
    if not lanes:
        return None
    return BarChart(
        label=f"Memory of the largest worker by strategy on {comparison.workload}: peak, and variables in it",
        axis=Axis(name="bytes of the largest worker", unit="bytes"),
        lanes=tuple(lanes),
    )


def scaling(curves: Scaling) -> LineChart:
    """Rate over the number of devices, with the perfect line of the first reference."""
    sizes = sorted({float(point.n_devices) for line in curves.lines for point in line.points})
    return LineChart(
        label=f"Examples per second by number of devices on {curves.workload}, with 95 % intervals",
        x=Axis(name="devices", unit="number", log=True, ticks=tuple(sizes)),
        y=Axis(name="examples per second", unit="number", log=True),
        lines=(
            *(_scaling_line(line, color) for color, line in enumerate(curves.lines)),
            *_perfect(curves.lines, sizes),
        ),
    )


def link_sensitivity(curves: LinkSensitivity) -> LineChart | None:
    """Rate over the rate of links; None with fewer than two limited ones, which a table shows as well."""
    rates = sorted({mbit for line in curves.lines for mbit in _limited(line)})
    if len(rates) < 2:
        return None
    return LineChart(
        label=f"Examples per second by link rate on {curves.workload}, with 95 % intervals",
        x=Axis(name="rate asked of links", unit="mbit", log=True, ticks=tuple(rates)),
        y=Axis(name="examples per second", unit="number", log=True),
        lines=tuple(_link_line(line, color) for color, line in enumerate(curves.lines) if _limited(line)),
        events=tuple(
            Event(
                x=each.at_mbit,
                text=f"≈ {link_rate(each.at_mbit, significant=2)}",
                keys=(each.ahead_below, each.ahead_above),
            )
            for each in curves.cross_overs
            if each.at_mbit is not None and each.is_shown
        ),
    )


def _losses(comparison: Comparison, axis: str, *, by_second: bool) -> LineChart | None:
    curves = comparison.curves.losses
    known = [loss for curve in curves for loss in curve.mean if loss is not None]
    if not known:
        return None
    colors = _colors([row.strategy for row in comparison.rows])
    is_log = min(known) > 0 and max(known) / min(known) > _LOG_FROM
    by = "second" if by_second else "step"
    return LineChart(
        label=f"Loss by {by} of training on {comparison.workload}, mean over repeats",
        x=Axis(
            name=axis,
            unit="seconds" if by_second else "number",
            what="" if by_second else "step",
            low=0.0,
        ),
        y=Axis(name="loss", unit="number", what="loss", log=is_log),
        lines=tuple(
            Line(
                key=curve.strategy,
                name=curve.strategy,
                color=colors[curve.strategy],
                points=_loss_points(curve, by_second=by_second, is_log=is_log),
            )
            for curve in curves
        ),
    )


def _loss_points(
    curve: LossCurve, *, by_second: bool, is_log: bool
) -> tuple[tuple[float, float | None], ...]:
    at = curve.at_s if by_second else map(float, curve.at_steps)
    return tuple(
        (x, None if loss is None or (is_log and loss <= 0) else loss)
        for x, loss in zip(at, curve.mean, strict=True)
    )


def _scaling_line(line: ScalingLine, color: int) -> Line:
    return Line(
        key=line.strategy,
        name=line.strategy,
        color=color,
        points=tuple((float(point.n_devices), point.rate.value) for point in line.points),
        tips=tuple(_scaling_tip(line, point) for point in line.points),
        intervals=_intervals([(float(point.n_devices), point.rate) for point in line.points]),
    )


def _scaling_tip(line: ScalingLine, point: ScalingPoint) -> str:
    where = f"{line.strategy} on {point.workers} workers × {point.replicas}"
    return f"{where}: {_rate(point.rate)}, {100 * point.efficiency.value:.0f} % of perfect"


def _perfect(lines: Sequence[ScalingLine], sizes: Sequence[float]) -> tuple[Line, ...]:
    """A line of equal rates per device; none where strategies have references of their own."""
    references = {(line.reference, line.reference_devices) for line in lines}
    points = [point for line in lines for point in line.points]
    if len(references) != 1 or not points:
        return ()
    per_device = points[0].perfect_rate / points[0].n_devices
    ends = (sizes[0], sizes[-1])
    return (
        Line(
            key="",
            name="perfect scaling",
            color=0,
            kind="perfect",
            points=tuple((n, n * per_device) for n in ends),
        ),
    )


def _limited(line: LinkLine) -> list[float]:
    return [point.requested_mbit for point in line.points if point.requested_mbit is not None]


def _link_line(line: LinkLine, color: int) -> Line:
    points = [(point.requested_mbit, point.rate) for point in line.points if point.requested_mbit is not None]
    return Line(
        key=line.strategy,
        name=line.strategy,
        color=color,
        points=tuple((mbit, rate.value) for mbit, rate in points),
        tips=tuple(f"{line.strategy} at {link_rate(mbit)}: {_rate(rate)}" for mbit, rate in points),
        intervals=_intervals(points),
    )


def _intervals(points: Sequence[tuple[float, Estimate]]) -> tuple[tuple[float, float, float], ...]:
    known = [(x, rate.interval) for x, rate in points if rate.interval is not None]
    # On a logarithmic axis there is no place for others.
    return tuple((x, each.low, each.high) for x, each in known if each.low > 0 and math.isfinite(each.high))


def _rate(rate: Estimate) -> str:
    return f"{plain(rate.value)} examples/s, {interval_of(rate)}, n={rate.n}"


def _colors(names: Sequence[str]) -> dict[str, int]:
    """A colour for each strategy of a comparison, the same in all its charts."""
    return dict(zip(names, itertools.count()))
