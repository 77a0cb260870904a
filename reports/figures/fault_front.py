"""The chart of what robustness costs: throughput against the worst metric under faults."""

from __future__ import annotations

import math

from markupsafe import Markup

from reports.figures.frame import Frame
from reports.figures.svg import CHARACTER_PX, Scale, axis, chart, dots, line, text
from reports.quantities import digits, times
from reports.rows import FaultMatrix

_HEIGHT = 260.0
_LINE = 13.0


def fault_front(matrix: FaultMatrix, frame: Frame) -> Markup:
    """Each strategy as a dot: speed without faults to the right, its worst result under faults upwards."""
    points = [
        (each.strategy, each.relative_rate, each.worst, each.on_front)
        for each in matrix.lines
        if each.relative_rate is not None and each.worst is not None and math.isfinite(each.worst)
    ]
    if not points:
        return Markup("")
    left = 56.0 if frame.wide else 40.0
    fastest = max(rate for _, rate, _, _ in points)
    across = Scale(low=0, high=fastest * 1.1, left=left, right=frame.right)
    worsts = [worst for _, _, worst, _ in points]
    low, high = min(worsts), max(*worsts, 1e-9)
    # Figures that are close to each other would be one line above an axis that begins at zero.
    room = 0.3 * (high - low) if low > high / 2 and high > low else 0.1 * high
    up = Scale(low=max(0.0, low - room) if low > high / 2 else 0.0, high=high + room, left=_HEIGHT, right=30)
    better = "less" if matrix.less_is_better else "more"
    parts = [axis(across, 8, _HEIGHT, times, most=frame.most_ticks)]
    for tick in up.ticks(5):
        y = up.at(tick)
        parts += [
            line(left, y, frame.right, y, kind="grid"),
            text(left - 6, y + 4, digits(tick), kind="tick", anchor="end"),
        ]
    parts.append(text(left - 6, 14, f"worst {matrix.metric}, {better} is better", kind="tick"))
    taken: list[tuple[float, float, float]] = []
    for name, rate, worst, on_front in sorted(points, key=lambda point: (not point[3], point[1])):
        x, y = across.at(rate), up.at(worst)
        tip = f"{name}: {times(rate)} the speed, {matrix.metric} {digits(worst)} at worst"
        dot = dots([(x, y)], kind="dots front" if on_front else "dots behind")
        parts.append(Markup("<g><title>{}</title>{}</g>").format(tip, dot))
        if on_front or frame.wide:
            parts.append(_label(name, x, y, taken, middle=(left + frame.right) / 2))
    caption = f"speed relative to {matrix.baseline or 'the baseline'} without faults"
    parts.append(text(left, _HEIGHT + 32, caption, kind="tick"))
    label = f"Worst {matrix.metric} under faults against speed on {matrix.workload}, by strategy"
    return chart(parts, width=frame.width, height=_HEIGHT + 40, label=label, kind=frame.width_class)


def _label(
    name: str, x: float, y: float, taken: list[tuple[float, float, float]], *, middle: float
) -> Markup:
    """A dot's name, at the first height where no other name is.

    Args:
        taken: left, right and height of names that are there; this one's is added.
        middle: right of which names stand left of their dots.
    """
    width = CHARACTER_PX * len(name)
    anchor, start = ("end", x - 8 - width) if x > middle else ("start", x + 8)
    heights = [y + offset for offset in (-7, 16, -22, 31, -37, 46)]

    def is_free(height: float) -> bool:
        return all(
            start > right or start + width < other or abs(height - at) > _LINE for other, right, at in taken
        )

    height = next(filter(is_free, heights), heights[0])
    taken.append((start, start + width, height))
    return text(x + (-8 if anchor == "end" else 8), height, name, kind="small", anchor=anchor)
