"""Pictures of charts in a page: SVG for wide and narrow pages, and what scripts draw them anew from."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from markupsafe import Markup

from reports.figures.legend import LegendEntry, legend_of
from reports.figures.renderer import NARROW_PX, WIDE_PX, as_data, svg_of
from reports.figures.specification import Chart, LineChart


@dataclass(frozen=True, slots=True, kw_only=True)
class LineEntry:
    """A line's name and how it is drawn; `key` is what readers filter by."""

    key: str
    name: str
    color: int
    is_perfect: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A chart as SVG elements, of which the style sheet shows the one that fits the page.

    Pages of many cases have no narrow ones, and only the most important wide ones: scripts draw the others.
    """

    id: str
    label: str
    wide: Markup
    narrow: Markup
    forms: tuple[LegendEntry, ...]
    legend: tuple[LineEntry, ...]


@dataclass(slots=True, kw_only=True)
class Pictures:
    """The charts of one page by their ids.

    Args:
        room: characters of SVG that the page may hold, but for charts that are `always` drawn.
        with_narrow: whether charts are drawn for narrow pages, too.
        specifications: of the charts that are in the page, what scripts draw them from.
    """

    charts: Mapping[str, Chart] = field(default_factory=dict)
    room: int = 2_000_000
    with_narrow: bool = True
    specifications: dict[str, object] = field(default_factory=dict)

    def of(self, id: str, *, always: bool = False) -> Picture | None:  # noqa: A002 - it is the element's id
        """Draw the chart of an id; None where there is none."""
        chart = self.charts.get(id)
        return None if chart is None else self.add(id, chart, always=always)

    def add(self, id: str, chart: Chart, *, always: bool = False) -> Picture:  # noqa: A002 - as above
        """Draw a chart and keep its specification."""
        data = as_data(chart)
        self.specifications[id] = data
        wide = svg_of(data, width=WIDE_PX) if always or self.room > 0 else ""
        narrow = svg_of(data, width=NARROW_PX) if wide and self.with_narrow else ""
        self.room -= len(wide) + len(narrow)
        lines = chart.lines if isinstance(chart, LineChart) else ()
        return Picture(
            id=id,
            label=chart.label,
            # Text within is escaped by what draws it.
            wide=Markup(wide),  # noqa: S704
            narrow=Markup(narrow),  # noqa: S704
            # Lines are in the legend below, by which readers filter.
            forms=tuple(entry for entry in legend_of(chart) if entry.form != "line"),
            legend=tuple(
                LineEntry(key=line.key, name=line.name, color=line.color, is_perfect=line.kind == "perfect")
                for line in lines
            ),
        )


def packed(data: object) -> str:
    """Data for the page's script: JSON, compressed, in letters of base64."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    # Without the time of day, the same report is the same page.
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode()
