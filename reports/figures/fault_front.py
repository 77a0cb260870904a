"""The chart of what robustness costs: throughput against the worst metric under faults."""

from __future__ import annotations

import math

from reports.figures.specification import Axis, Point, PointChart
from reports.quantities import digits, times
from reports.rows import FaultMatrix


def fault_front(matrix: FaultMatrix) -> PointChart | None:
    """Each strategy as a point: speed without faults to the right, its worst result under faults upwards."""
    points = [
        (each.strategy, each.relative_rate, each.worst, each.on_front)
        for each in matrix.lines
        if each.relative_rate is not None and each.worst is not None and math.isfinite(each.worst)
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
        front="on the front: no other is both as fast and as good at worst",
        behind="behind it",
    )
