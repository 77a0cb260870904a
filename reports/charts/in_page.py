"""Charts in a page: their legends, the data that scripts draw them from, and the scripts themselves."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import resources
from typing import Literal

from reports.charts.specification import BarChart, Chart, Line, LineChart, PointChart, TimelineChart
from reports.marks import FORMS, mark_text
from reports.quantities import MISSING

# Each uses what is in those before it.
_SCRIPTS = ("colors", "numbers", "names", "axes", "bars", "points", "lines", "strips", "timelines", "charts")
_DIGITS = 5
_DATE_DIGITS = 8
"""Digits kept of a date in days since 1970, enough to draw several nights of one date side by side."""
_FAR = 1e300
_PLACES = ("points", "intervals")


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """Meaning of a form in a colour of the style sheet."""

    form: Literal["bar", "outline", "dot", "diamond", "interval", "median"]
    color: str
    text: str


_MARKS: dict[str, LegendEntry] = {
    kind: LegendEntry("outline" if form.is_outlined else "bar", form.color, mark_text(kind))
    for kind, form in FORMS.items()
}
# One device needs no entry of its own in a legend; implausible figures are a status and no mark.
_MARKS |= {
    "reference": _MARKS["equivalent"],
    "implausible": LegendEntry("outline", "red", f"{MISSING} implausible"),
}
KINDS: dict[str, LegendEntry] = _MARKS | {
    "payload": LegendEntry("bar", "grey", "payload (predicted)"),
    "tcp": LegendEntry("bar", "blue", "TCP (measured)"),
    "interface": LegendEntry("bar", "sky", "interface (measured)"),
    "compute": LegendEntry("bar", "blue", "computing"),
    "transfer": LegendEntry("bar", "amber", "transfer"),
    "host": LegendEntry("bar", "vermilion", "host: launching kernels or running operations"),
    "wait": LegendEntry("bar", "purple", "waiting for workers"),
    "rest": LegendEntry("bar", "grey", "rest"),
    "predicted": LegendEntry("outline", "blue", "predicted"),
    "measured": LegendEntry("bar", "blue", "measured"),
    "exchange": LegendEntry("bar", "vermilion", "work of exchanges"),
    "resident": LegendEntry("bar", "sky", "peak memory of the largest worker"),
    "variables": LegendEntry("bar", "blue", "variables and slots"),
}
"""Kind of a bar → its form, colour and meaning."""
_INTERVAL = LegendEntry("interval", "ink", "95 % confidence interval")
_BESIDE_LINES = {
    "measured": _INTERVAL,
    "predicted": LegendEntry("bar", "grey", "95 % interval of a prediction"),
    "points": LegendEntry("dot", "ink", "measured in the run"),
}
"""Kind of a line → entry for its intervals, or for what stands in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageChart:
    """Place of a chart in a page: its id, its name for screen readers, and its legend.

    `lines` are part of the legend and follow the filter.
    """

    id: str
    label: str
    legend: tuple[LegendEntry, ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class PageCharts:
    """Charts of one page; `data` has their specifications by id, for the page's script."""

    data: dict[str, object] = field(default_factory=dict)

    def add(self, id: str, chart: Chart | None) -> PageChart | None:  # noqa: A002 - it is the element's id
        """Keep a chart's data for the script; None without a chart."""
        if chart is None:
            return None
        self.data[id] = as_data(chart)
        return PageChart(
            id=id,
            label=chart.label,
            legend=legend_of(chart),
            lines=tuple(line for line in chart.lines if line.kind != "points")
            if isinstance(chart, LineChart)
            else (),
        )


def legend_of(chart: Chart) -> tuple[LegendEntry, ...]:
    """Entries for everything but lines that the chart shows, each once."""
    return tuple(dict.fromkeys(_entries(chart)))


def _entries(chart: Chart) -> Iterator[LegendEntry]:
    if isinstance(chart, BarChart | TimelineChart):
        yield from (KINDS[bar.kind] for lane in chart.lanes for bar in lane.bars)
        if any(lane.interval for lane in chart.lanes):
            yield _INTERVAL
    elif isinstance(chart, PointChart):
        kinds = {point.kind for point in chart.points}
        if "front" in kinds:
            yield LegendEntry("diamond", "blue", chart.front)
        if "behind" in kinds:
            yield LegendEntry("dot", "amber", chart.behind)
    elif isinstance(chart, LineChart):
        beside = {line.kind for line in chart.lines if line.intervals or line.kind == "points"}
        yield from (entry for kind, entry in _BESIDE_LINES.items() if kind in beside)
    else:
        yield LegendEntry("dot", "blue", "timed step of the slowest worker")
        if any(repeat.n_warmup for lane in chart.lanes for repeat in lane.repeats):
            yield LegendEntry("dot", "amber", "warm-up step, in no figure")
        if any(repeat.median is not None for lane in chart.lanes for repeat in lane.repeats):
            yield LegendEntry("median", "ink", "median of the repeat")


def as_data(chart: Chart) -> dict[str, object]:
    """Specification for the scripts: plain data, with no more digits than a picture can show."""
    is_dated = isinstance(chart, LineChart) and chart.x.unit == "date"
    data = _plain_fields(chart, _DIGITS, _DATE_DIGITS if is_dated else _DIGITS)
    if isinstance(chart, BarChart | TimelineChart):
        kinds = dict.fromkeys(bar.kind for lane in chart.lanes for bar in lane.bars)
        data["kinds"] = {kind: [KINDS[kind].form, KINDS[kind].color] for kind in kinds}
    return data


def _plain(value: object, digits: int, x_digits: int) -> object:
    """Part of a specification as plain data.

    Args:
        digits, x_digits: significant digits of a number, and of one along the horizontal axis of lines.
    """
    if isinstance(value, float):
        return _rounded((value,), digits)[0]
    if isinstance(value, tuple):
        if value and type(value[0]) is float:
            return _rounded(value, digits)
        return [_plain(item, digits, x_digits) for item in value]
    return _plain_fields(value, digits, x_digits) if dataclasses.is_dataclass(value) else value


def _rounded(values: tuple[float | None, ...], digits: int) -> list[float | None]:
    if all(type(number) is float and math.isfinite(number) for number in values):
        # Thousands of steps are rounded in one call.
        return [float(text) for text in (f"%.{digits}g " * len(values) % values).split()]
    # JSON has no infinity: a limit that has none ends at the edge of the picture.
    return [
        None if number is None or math.isnan(number) else float(f"{min(max(number, -_FAR), _FAR):.{digits}g}")
        for number in values
    ]


def _plain_fields(value: object, digits: int, x_digits: int) -> dict[str, object]:
    # The scripts find what is None themselves, except a bar's end, which was not measured.
    plain = {
        name: _plain(item, x_digits if name == "x" else digits, x_digits)
        for name in value.__dataclass_fields__  # type: ignore[attr-defined]
        if not (isinstance(value, Line) and name in _PLACES)
        if (item := getattr(value, name)) is not None or name == "end"
    }
    if isinstance(value, Line):
        for name in _PLACES:
            columns = zip(*getattr(value, name), strict=True)
            rounded = (_rounded(column, digits if i else x_digits) for i, column in enumerate(columns))
            plain[name] = list(map(list, zip(*rounded, strict=True)))
    return plain


def packed(data: object) -> str:
    """Data for the page's script: JSON, compressed, in letters of base64."""
    return compressed(json.dumps(data, allow_nan=False, separators=(",", ":")))


def compressed(text: str) -> str:
    """Text compressed, in letters of base64."""
    # Without the time of day, the same report is the same page.
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode()


def echarts_source() -> str:
    """Apache ECharts, as far as charts need it (licence and how it is made: `reports/charts/bundle`)."""
    return _source("bundle/echarts.min.js")


def charts_source() -> str:
    """The functions that make ECharts options of specifications: `scripts`, in one function."""
    marks = {
        kind: (entry.text[0], "soft" if entry.color == "grey" else entry.color)
        for kind, entry in _MARKS.items()
    }
    body = "\n".join(_source(f"scripts/{name}.js") for name in _SCRIPTS)
    return f'(() => {{\n"use strict";\n\nconst MARKS = {json.dumps(marks)};\n{body}}})();\n'


def _source(name: str) -> str:
    return resources.files("reports.charts").joinpath(name).read_text(encoding="utf-8")
