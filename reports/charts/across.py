"""Charts across comparisons: rates over sizes and over links, and the price of robustness."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from reports.charts.comparison import rate_text
from reports.charts.specification import Axis, Event, Line, LineChart, Point, PointChart
from reports.quantities import digits, link_rate, times
from reports.rows.report import FaultMatrix, LinkLine, LinkSensitivity, Scaling, ScalingLine, ScalingPoint
from reports.statistics import Estimate


def scaling(curves: Scaling) -> LineChart:
    """Rate over the number of devices, with the perfect line of the first reference."""
    sizes = sorted({float(point.n_devices) for line in curves.lines for point in line.points})
    return LineChart(
        label=f"Examples per second by number of devices on {curves.workload}, with 95 % CI",
        x=Axis(name="devices", unit="number", log=True, ticks=tuple(sizes)),
        y=Axis(name="examples per second", unit="number", log=True),
        lines=(
            *(_scaling_line(line, color) for color, line in enumerate(curves.lines)),
            *_perfect(curves.lines, sizes),
        ),
    )


def link_sensitivity(curves: LinkSensitivity) -> LineChart | None:
    """Rate over the rate of links; None with fewer than two limited ones, which a table shows as well."""
    rates = sorted({mbit for line in curves.lines for mbit, _ in _limited(line)})
    if len(rates) < 2:
        return None
    return LineChart(
        label=f"Examples per second by link rate on {curves.workload}, with 95 % CI",
        x=Axis(name="requested link rate", unit="mbit", log=True, ticks=tuple(rates)),
        y=Axis(name="examples per second", unit="number", log=True),
        lines=tuple(_link_line(line, color) for color, line in enumerate(curves.lines) if _limited(line)),
        events=tuple(
            Event(
                x=cross_over.at_mbit,
                text=f"≈ {link_rate(cross_over.at_mbit, significant=2)}",
                keys=(cross_over.ahead_below, cross_over.ahead_above),
            )
            for cross_over in curves.cross_overs
            if cross_over.at_mbit is not None and cross_over.is_shown
        ),
    )


def _line(name: str, color: int, points: Sequence[tuple[float, Estimate]], tips: Iterable[str]) -> Line:
    known = [(x, rate.interval) for x, rate in points if rate.interval is not None]
    return Line(
        key=name,
        name=name,
        color=color,
        points=tuple((x, rate.value) for x, rate in points),
        tips=tuple(tips),
        # A logarithmic axis has no place for other limits.
        intervals=tuple(
            (x, limits.low, limits.high)
            for x, limits in known
            if limits.low > 0 and math.isfinite(limits.high)
        ),
    )


def _scaling_line(line: ScalingLine, color: int) -> Line:
    points = [(float(point.n_devices), point.rate) for point in line.points]
    return _line(line.strategy, color, points, (_scaling_tip(line, point) for point in line.points))


def _scaling_tip(line: ScalingLine, point: ScalingPoint) -> str:
    where = f"{line.strategy} on {point.workers} workers × {point.replicas}"
    return f"{where}: {rate_text(point.rate)}, {100 * point.efficiency.value:.0f} % of perfect"


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


def _limited(line: LinkLine) -> list[tuple[float, Estimate]]:
    return [(point.requested_mbit, point.rate) for point in line.points if point.requested_mbit is not None]


def _link_line(line: LinkLine, color: int) -> Line:
    points = _limited(line)
    tips = (f"{line.strategy} at {link_rate(mbit)}: {rate_text(rate)}" for mbit, rate in points)
    return _line(line.strategy, color, points, tips)


def fault_front(matrix: FaultMatrix) -> PointChart | None:
    """Each strategy as a point: speed without faults to the right, its worst result under faults upwards."""
    points = [
        (line.strategy, line.relative_rate, line.worst, line.on_front)
        for line in matrix.lines
        if line.relative_rate is not None and line.worst is not None and math.isfinite(line.worst)
    ]
    if not points:
        return None
    worsts = [worst for _, _, worst, _ in points]
    low, high = min(worsts), max(worsts)
    better = "less" if matrix.less_is_better else "more"
    return PointChart(
        label=f"Worst {matrix.metric} under faults against speed on {matrix.workload}, by strategy",
        x=Axis(
            name=f"speed relative to {matrix.baseline or 'the baseline'} without faults",
            unit="times",
            low=0.0,
        ),
        # Figures that are close to each other would be one line above an axis that begins at zero.
        y=Axis(
            name=f"worst {matrix.metric}, {better} is better",
            unit="number",
            low=None if low > high / 2 and high > low else 0.0,
        ),
        points=tuple(
            Point(
                key=name,
                name=name,
                x=rate,
                y=worst,
                kind="front" if on_front else "behind",
                tip=f"{name}: {times(rate)} the speed, {matrix.metric} {digits(worst)} at worst",
            )
            for name, rate, worst, on_front in points
        ),
        front="Pareto front",
        behind="dominated",
    )
