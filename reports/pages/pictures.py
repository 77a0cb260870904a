"""Pictures of charts in a page: SVG for wide and narrow pages, and what scripts draw them anew from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

from reports.figures.renderer import NARROW_PX, WIDE_PX, as_data, svg
from reports.figures.specification import Chart, LineChart


@dataclass(frozen=True, slots=True, kw_only=True)
class LegendEntry:
    """A line's name and how it is drawn."""

    name: str
    color: int
    is_perfect: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A chart as SVG elements, of which the style sheet shows the one that fits the page."""

    id: str
    label: str
    wide: Markup
    narrow: Markup
    legend: tuple[LegendEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """The charts of one page by their ids."""

    charts: Mapping[str, Chart]

    def of(self, id: str) -> Picture | None:  # noqa: A002 - it is the element's id
        """Draw a chart; None where there is none."""
        chart = self.charts.get(id)
        if chart is None:
            return None
        lines = chart.lines if isinstance(chart, LineChart) else ()
        return Picture(
            id=id,
            label=chart.label,
            # Text within is escaped by what draws it.
            wide=Markup(svg(chart, width=WIDE_PX)),  # noqa: S704
            narrow=Markup(svg(chart, width=NARROW_PX)),  # noqa: S704
            legend=tuple(
                LegendEntry(name=line.name, color=line.color, is_perfect=line.kind == "perfect")
                for line in lines
            ),
        )

    def specifications(self) -> dict[str, object]:
        """What scripts draw the charts from."""
        return {id: as_data(chart) for id, chart in self.charts.items()}  # noqa: A001
