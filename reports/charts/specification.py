"""Specifications of charts: the data of a figure and what its axes mean, drawn by `scripts`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Unit = Literal["number", "times", "percent", "bytes", "seconds", "mbit", "date"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Axis of a chart; the unit `date` counts days since 1970.

    Missing limits and ticks follow from the values. `what` is the word for a value in tooltips, such as
    loss.
    """

    name: str
    unit: Unit
    what: str = ""
    log: bool = False
    low: float | None = None
    high: float | None = None
    ticks: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Bar of a lane; `kind` is its row in the table of kinds, `end` is None if not measured.

    `text` stands behind it, `short` on a narrow page, `tip` is its tooltip.
    """

    kind: str
    start: float = 0.0
    end: float | None
    tip: str
    text: str = ""
    short: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Bars of a strategy; `key` is its name for filters, `mark` a kind of mark, `remark` is below it."""

    key: str
    name: str
    mark: str
    bars: tuple[Bar, ...]
    interval: tuple[float, float] | None = None
    value: str = ""
    note: str = ""
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BarChart:
    """Bars from left to right: below each other in their lane, or end to end if `stacked`.

    `reference`: value of a line through all lanes.
    """

    label: str
    axis: Axis
    lanes: tuple[Lane, ...]
    stacked: bool = False
    reference: float | None = None
    form: Literal["bars"] = "bars"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Strategy as a point, on the Pareto front or behind it."""

    key: str
    name: str
    x: float
    y: float
    kind: Literal["front", "behind"]
    tip: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PointChart:
    """Strategies as points; `joined` draws a line through the front.

    `front` and `behind` are their texts in the legend.
    """

    label: str
    x: Axis
    y: Axis
    points: tuple[Point, ...]
    front: str
    behind: str
    joined: bool = False
    form: Literal["points"] = "points"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line through points (x, y or None for a gap).

    `color` numbers the lines of a chart. `intervals` are (x, low, high). `tips`: tooltip of each
    point, by default the line's name and both values. `predicted` lines are dashed, with a band between
    their intervals; of `points` there is no line.
    """

    key: str
    name: str
    color: int
    points: tuple[tuple[float, float | None], ...]
    tips: tuple[str, ...] | None = None
    intervals: tuple[tuple[float, float, float], ...] = ()
    kind: Literal["measured", "perfect", "predicted", "points"] = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Event at a place of the horizontal axis, of the lines in `keys` or of all."""

    x: float
    text: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """Lines over a common horizontal axis."""

    label: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    events: tuple[Event, ...] = ()
    low_height: bool = False
    form: Literal["lines"] = "lines"


@dataclass(frozen=True, slots=True, kw_only=True)
class StripRepeat:
    """Steps of one repeat in seconds; figures leave out the first `n_warmup`."""

    seconds: tuple[float, ...]
    n_warmup: int
    median: float | None
    text: str
    tip: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StripLane:
    """Repeats of a strategy."""

    key: str
    name: str
    mark: str
    repeats: tuple[StripRepeat, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StripChart:
    """Every step as a dot, a strip for each repeat."""

    label: str
    lanes: tuple[StripLane, ...]
    form: Literal["strips"] = "strips"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineChart:
    """Bars at their times, each lane's in one row."""

    label: str
    axis: Axis
    lanes: tuple[Lane, ...]
    form: Literal["timelines"] = "timelines"


Chart: TypeAlias = BarChart | PointChart | LineChart | StripChart | TimelineChart
