"""HTML report: one self-contained page; tables need no scripts, charts do."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from importlib import resources

import jinja2
import yaml
from markupsafe import Markup, escape

from harness.canonical import json_value
from harness.records.comparison import CONFIDENCE, MIN_REPEATS_INTERVAL, SEQUENTIAL_CONFIDENCE, TRIMMED_SHARE
from reports.charts.across import fault_front, link_sensitivity, scaling
from reports.charts.comparison import ranking, standing
from reports.charts.in_page import PageCharts, charts_source, echarts_source, packed
from reports.contrasts import SIGNIFICANCE
from reports.pages.data import document
from reports.pages.sections import SECTIONS, Section
from reports.quantities import byte_count
from reports.recommendation.candidates import can_win
from reports.rows.report import Comparison, Report
from reports.rows.row import Row
from reports.statistics import MIN_REPEATS_SIGN_FLIP, MIN_REPEATS_TEST
from reports.tables.curves import fault_table, front_line, link_table, scaling_table
from reports.tables.figures import ratio_cell, speed_table
from reports.tables.placements import difference_table, placement_table, problem_table, server_table

_CODE = re.compile(r"`([^`]+)`")


def prose(text: str) -> Markup:
    """Text as markup, with what stands between backticks as code; a backtick without another stays."""
    # With a group, splitting gives what is between matches and what is in them in turn.
    code = Markup("<code>{}</code>")
    parts = enumerate(_CODE.split(text))
    return Markup("").join(code.format(part) if i % 2 else part for i, part in parts)


def breakable(note: str) -> Markup:
    """Text as markup, which browsers may break behind each comma."""
    return escape(note).replace(", ", Markup(", <wbr>"))


_MAY_WIN = "may win"
_MANY_ROWS = 60
"""From so many on a page has no rows as data: they would be as long as all tables together."""
_DRAWN = ("steps", "other_baselines", "curves", "scaling", "link_sensitivity", "placement", "passes")
"""Fields that the page shows as charts and tables; as data they would double its size."""


def to_html(report: Report, *, in_run_folder: bool = False) -> str:
    """The report as one self-contained page, which asks for nothing and runs only its own script.

    Args:
        in_run_folder: whether it will lie where traces do, to which it then leads.
    """
    n_rows = sum(len(comparison.rows) for comparison in report.comparisons)
    charts = PageCharts()
    script = page_script()
    return template("report.html.j2").render(
        report=report,
        in_run_folder=in_run_folder,
        **_across_shapes(report, charts),
        sections=[_comparison(comparison, i, charts) for i, comparison in enumerate(report.comparisons)],
        problems=problem_table(report.problems) if report.problems else None,
        with_logs=[problem for problem in report.problems if problem.log],
        differences=difference_table(report),
        rules={
            "confidence": f"{100 * CONFIDENCE:.0f} %",
            "sequential_confidence": f"{100 * SEQUENTIAL_CONFIDENCE:.0f} %",
            "trimmed": f"{100 * TRIMMED_SHARE:.0f} %",
            "least_interval": MIN_REPEATS_INTERVAL,
            "least_sign_flip": MIN_REPEATS_SIGN_FLIP,
            "least_test": MIN_REPEATS_TEST,
            "significance": f"{SIGNIFICANCE:g}",
        },
        experiments=[
            (origin.run, yaml.safe_dump(json_value(origin.experiment), sort_keys=False, allow_unicode=True))
            for origin in report.origins
            if origin.experiment
        ],
        kinds=sorted({row.class_ for comparison in report.comparisons for row in comparison.rows}),
        may_win=_MAY_WIN,
        data=document(report, without=_DRAWN) if n_rows <= _MANY_ROWS else None,
        charts=packed(
            {
                "charts": charts.data,
                "noun": "strategies",
                "kinds": _kinds(report),
                "ratios": {f"comparison-{i}": _ratios(each) for i, each in enumerate(report.comparisons)},
            }
        ),
        script=script,
        script_hash=script_hash(script),
    )


def template(name: str) -> jinja2.Template:
    """A template of a page, in which everything is escaped that is not markup already."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("reports", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"prose": prose, "breakable": breakable}
    environment.globals["zip"] = zip
    return environment.get_template(name)


def page_script() -> Markup:
    """The one script of a page: the library that draws, what charts are made of, and what readers can do."""
    own = resources.files("reports").joinpath("templates/page.js").read_text(encoding="utf-8")
    # They are files of this package, and none of them holds the end of a script element.
    return Markup("\n").join(Markup(source) for source in (echarts_source(), charts_source(), own))  # noqa: S704


def script_hash(script: str) -> str:
    """Hash by which a page's policy allows its one script."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _across_shapes(report: Report, charts: PageCharts) -> dict[str, list[dict[str, object]]]:
    return {
        "matrices": [
            {
                "matrix": matrix,
                "headline": front_line(matrix),
                "table": fault_table(matrix),
                "chart": charts.add(f"faults-{i}-front", fault_front(matrix)),
            }
            for i, matrix in enumerate(report.fault_matrices)
        ],
        "scalings": [
            {
                "scaling": curves,
                "table": scaling_table(curves),
                "chart": charts.add(f"scaling-{i}-rates", scaling(curves)),
            }
            for i, curves in enumerate(report.scaling)
        ],
        "links": [
            {
                "links": links,
                "table": link_table(links),
                "chart": charts.add(f"links-{i}-rates", link_sensitivity(links)),
            }
            for i, links in enumerate(report.link_sensitivity)
        ],
    }


def _kinds(report: Report) -> dict[str, dict[str, list[str]]]:
    """Kinds that readers can filter strategies by: section → strategy → its kinds.

    The section without a name has all of them, for tables and charts over several comparisons.
    """
    sections = {
        f"comparison-{i}": {
            row.strategy: {row.class_, _MAY_WIN} if can_win(row) else {row.class_} for row in comparison.rows
        }
        for i, comparison in enumerate(report.comparisons)
    }
    everywhere: dict[str, set[str]] = {
        line.strategy: set() for matrix in report.fault_matrices for line in matrix.lines
    }
    for strategies in sections.values():
        for name, kinds in strategies.items():
            everywhere[name] = everywhere.get(name, set()) | kinds
    return {
        section: {name: sorted(kinds) for name, kinds in strategies.items()}
        for section, strategies in {**sections, "": everywhere}.items()
    }


def _ratios(comparison: Comparison) -> dict[str, object]:
    """Baseline → its rate, and strategy → its ratio as table and chart show it, for those one may choose."""
    rates = {row.strategy: row.rate.value for row in comparison.rows if row.rate is not None}

    def shown(row: Row, base: str) -> dict[str, object]:
        ratio = comparison.other_baselines[base].get(row.strategy)
        against = replace(row, is_baseline=row.strategy == base, ratio=ratio)
        cell, (value, note) = ratio_cell(against), standing(against)
        return {"cell": [cell.text, cell.note, cell.value], "lane": [value, note]}

    return {
        base: {"rate": rates[base], "rows": {row.strategy: shown(row, base) for row in comparison.rows}}
        for base in comparison.other_baselines
    }


def _comparison(comparison: Comparison, number: int, charts: PageCharts) -> dict[str, object]:
    name = f"comparison-{number}"
    return {
        "id": name,
        "comparison": comparison,
        "ranking": charts.add(f"{name}-ranking", ranking(comparison)),
        "speed": speed_table(comparison),
        "parts": [part for each in SECTIONS if (part := _part(each, comparison, name, charts)) is not None],
        "matrices": [(row.strategy, heat) for row in comparison.rows if (heat := _heat(row))],
        "placements": [
            (row, table) for row in comparison.rows if (table := placement_table(row)) is not None
        ],
        "servers": server_table(comparison),
        "traces": [row for row in comparison.rows if row.traces],
    }


def _part(
    section: Section, comparison: Comparison, name: str, charts: PageCharts
) -> dict[str, object] | None:
    """A section with its charts and its table; None when there is nothing to show."""
    pictures = [
        picture
        for chart, draw in section.charts.items()
        if (picture := charts.add(f"{name}-{chart}", draw(comparison))) is not None
    ]
    table = section.table(comparison) if section.table else None
    if not pictures and (table is None or (section.charts and not section.if_empty)):
        return None
    note = section.note(comparison) if section.note else ""
    return {"section": section, "charts": pictures, "note": note, "table": table}


def _heat(row: Row) -> list[list[tuple[str, str]]]:
    """The TCP matrix as shown bytes and their share of the largest cell; empty when nothing was sent."""
    if row.tcp_matrix is None:
        return []
    top = max((value for line in row.tcp_matrix for value in line if value is not None), default=0.0)
    if top <= 0:
        return []
    return [[(byte_count(value), f"{(value or 0.0) / top:.2f}") for value in line] for line in row.tcp_matrix]
