"""The legend of a chart, in the page and as a file: what its colours, dots and lines mean."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from reports.figures.specification import BarChart, Chart, LineChart, PointChart

_LINE_COLORS = ("blue", "vermilion", "green", "purple", "amber", "sky", "grey", "ink")
_DASHES = ("", "6 4", "2 3", "8 3 2 3")


@dataclass(frozen=True, slots=True, kw_only=True)
class LegendEntry:
    """What a form in a colour of the palette stands for; `dash` is a line's, as SVG writes it."""

    form: Literal["bar", "outline", "dot", "diamond", "line", "interval", "median"]
    color: str
    text: str
    dash: str = ""


KINDS: dict[str, tuple[Literal["bar", "outline"], str, str]] = {
    "equivalent": ("bar", "blue", "✓ computes the right thing"),
    "reference": ("bar", "blue", "✓ computes the right thing"),
    "within-bound": ("bar", "blue", "≈ within what its compressors may lose"),
    "not-equivalent": ("bar", "vermilion", "✗ NOT equivalent"),
    "beyond-bound": ("bar", "vermilion", "✗ beyond its bound"),
    "statistical": ("bar", "purple", "~ not held to equivalence"),
    "undecidable": ("bar", "grey", "? undecidable"),
    "not-checked": ("bar", "grey", "? not checked"),
    "control": ("outline", "grey", "○ control, never wins"),
    "twin": ("outline", "grey", "○ the baseline once more, never wins"),
    "implausible": ("outline", "vermilion", "! implausible"),
    "payload": ("bar", "grey", "payload, predicted from the plan"),
    "tcp": ("bar", "blue", "TCP, measured between workers"),
    "interface": ("bar", "sky", "interface counters"),
    "compute": ("bar", "blue", "computing"),
    "exposed": ("bar", "amber", "exposed communication: step time minus the control's"),
    "unsplit": ("bar", "grey", "not split"),
    "transfer": ("bar", "amber", "transfer"),
    "host": ("bar", "vermilion", "host: launching kernels, and what it runs itself"),
    "wait": ("bar", "purple", "waiting for workers"),
    "rest": ("bar", "grey", "rest"),
    "resident": ("bar", "sky", "peak resident memory of the largest worker"),
    "variables": ("bar", "blue", "variables and slots"),
}
"""Kind of a bar → how `scripts/bars.js` draws it, and in words."""
_INTERVAL = LegendEntry(form="interval", color="ink", text="95 % interval")


def legend_of(chart: Chart) -> tuple[LegendEntry, ...]:
    """Everything of which the chart has one, each once."""
    return tuple(dict.fromkeys(_entries(chart)))


def _entries(chart: Chart) -> Iterator[LegendEntry]:
    if isinstance(chart, BarChart):
        for kind in dict.fromkeys(bar.kind for lane in chart.lanes for bar in lane.bars):
            form, color, text = KINDS[kind]
            yield LegendEntry(form=form, color=color, text=text)
        if any(lane.interval for lane in chart.lanes):
            yield _INTERVAL
    elif isinstance(chart, PointChart):
        kinds = {point.kind for point in chart.points}
        if "front" in kinds:
            yield LegendEntry(form="diamond", color="blue", text=chart.front)
        if "behind" in kinds:
            yield LegendEntry(form="dot", color="amber", text=chart.behind)
    elif isinstance(chart, LineChart):
        yield from _line_entries(chart)
    else:
        yield LegendEntry(form="dot", color="blue", text="timed step of the slowest worker")
        if any(repeat.n_warmup for lane in chart.lanes for repeat in lane.repeats):
            yield LegendEntry(form="dot", color="amber", text="warm-up step, in no figure")
        yield LegendEntry(form="median", color="ink", text="median of the repeat")


def _line_entries(chart: LineChart) -> Iterator[LegendEntry]:
    for line in chart.lines:
        if line.kind == "perfect":
            yield LegendEntry(form="line", color="soft", text=line.name, dash=_DASHES[1])
        else:
            turn, color = divmod(line.color, len(_LINE_COLORS))
            yield LegendEntry(
                form="line", color=_LINE_COLORS[color], text=line.name, dash=_DASHES[turn % len(_DASHES)]
            )
    if any(line.intervals for line in chart.lines):
        yield _INTERVAL
