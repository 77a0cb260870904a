"""Specifications of charts: the data of a figure and what its axes mean, drawn by `scripts`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Unit = Literal["number", "times", "percent", "bytes", "seconds", "mbit", "date"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What lies along an axis; `date` counts days since 1970.

    Limits and ticks are found where there are none. `what` is a value of it in a word, such as loss: what a
    reader sees who points at one.
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
    """A bar of a lane; `kind` says what it is of, `end` is None where that was not measured.

    `text` stands behind it, `short` on a narrow page, `tip` is what a reader sees who points at it.
    """

    kind: str
    start: float = 0.0
    end: float | None
    tip: str
    text: str = ""
    short: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A strategy's bars; `key` is what readers filter by, `mark` how it stands to the reference."""

    key: str
    name: str
    mark: str
    bars: tuple[Bar, ...]
    interval: tuple[float, float] | None = None
    value: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BarChart:
    """Bars from left to right: beside each other in their lane, or end to end where `stacked`.

    `reference`: a value that a line marks through all lanes.
    """

    label: str
    axis: Axis
    lanes: tuple[Lane, ...]
    stacked: bool = False
    reference: float | None = None
    form: Literal["bars"] = "bars"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A strategy in a plane, on the front of those that none beats, or behind it."""

    key: str
    name: str
    x: float
    y: float
    kind: Literal["front", "behind"]
    tip: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PointChart:
    """Strategies in a plane; `joined` draws a line through its front.

    `front` and `behind` say what it means to be there.
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

    `color` numbers the lines of a chart. `intervals` are (x, low, high). `tips`: what a reader sees who
    points at each point, by default the line's name and both values.
    """

    key: str
    name: str
    color: int
    points: tuple[tuple[float, float | None], ...]
    tips: tuple[str, ...] | None = None
    intervals: tuple[tuple[float, float, float], ...] = ()
    kind: Literal["measured", "perfect"] = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened at a place of the horizontal axis, to the lines of `keys` or to all."""

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
    """Steps of one repeat in seconds, of which the first `n_warmup` are in no figure."""

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


Chart: TypeAlias = BarChart | PointChart | LineChart | StripChart
