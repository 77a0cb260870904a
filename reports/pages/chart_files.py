"""The charts of a report as files: their names, and SVG or PNG that stands by itself."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from harness.canonical import slug
from reports.figures.report_charts import ReportChart, report_charts
from reports.figures.standalone import png, svg_document
from reports.rows import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartFile:
    """A file of one chart: `chart` is its id in the page, `label` says what it shows, `where` of what."""

    name: str
    chart: str
    label: str
    where: str
    content: bytes


def chart_files(report: Report, *, is_png: bool) -> tuple[ChartFile, ...]:
    """A file for each chart of the page, in its order, named by section and chart.

    Raises:
        reports.figures.standalone.NoFontError: when PNG is asked for and no font is there.
    """
    charts = report_charts(report)
    names = file_stems(charts)
    return tuple(
        ChartFile(
            name=f"{name}.{'png' if is_png else 'svg'}",
            chart=each.id,
            label=each.chart.label,
            where=each.where,
            content=png(svg_document(each)) if is_png else svg_document(each).encode(),
        )
        for name, each in zip(names, charts, strict=True)
    )


def file_stems(charts: Sequence[ReportChart]) -> tuple[str, ...]:
    """Names of charts' files, in letters that every system takes; sections of equal names get numbers."""
    names: dict[str, str] = {}
    for section, group in itertools.groupby(charts, key=lambda each: each.section):
        of_section = tuple(group)
        taken = set(names.values())
        for stem in _stems(of_section[0]):
            candidates = {each.id: f"{stem}-{each.name}" for each in of_section}
            if taken.isdisjoint(candidates.values()):
                names |= candidates
                break
        assert of_section[0].id in names, section
    return tuple(names[each.id] for each in charts)


def _stems(chart: ReportChart) -> itertools.chain[str]:
    kind = chart.section.rpartition("-")[0]
    parts = (chart.workload, chart.distinction) if kind == "comparison" else (chart.workload, kind)
    stem = "-".join(slug(part) for part in parts)
    return itertools.chain((stem,), (f"{stem}-{number}" for number in itertools.count(2)))
