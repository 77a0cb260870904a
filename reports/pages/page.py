"""HTML report: one self-contained page; tables need no scripts, charts do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import yaml

from harness.canonical import json_value
from harness.records.comparison import CONFIDENCE, MIN_REPEATS_INTERVAL, SEQUENTIAL_CONFIDENCE, TRIMMED_SHARE
from reports.charts.across import fault_front
from reports.charts.comparison import ranking, standing
from reports.charts.in_page import PageChart, PageCharts, packed
from reports.contrasts import SIGNIFICANCE
from reports.marks import FORMS, legend_of
from reports.pages.data import document
from reports.pages.markup import template
from reports.pages.sections import PLAN, Section, failure_texts, head_of, sections_of, top_warnings
from reports.quantities import Table, byte_count
from reports.recommendation.candidates import can_win
from reports.recommendation.phrases import SUBJECTS
from reports.rows.report import Comparison, Report
from reports.rows.row import Row
from reports.statistics import MIN_REPEATS_SIGN_FLIP, MIN_REPEATS_TEST
from reports.tables.curves import fault_table, front_line
from reports.tables.figures import ratio_cell
from reports.tables.placements import difference_table, placement_table, problem_table
from reports.tables.predictions import residual_table, residuals_text
from reports.tables.summary import comparison_id, faults_id, summary_table

_CORRECT = "correct"
_MANY_ROWS = 60
"""Number of rows from which on a page has no rows as data, which would double its size."""
_DRAWN = ("steps", "other_baselines", "curves", "scaling", "link_sensitivity", "placement", "passes")
"""Fields that are no data of the page, since charts and tables have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A folded part of a comparison's section.

    Attributes:
        texts: list above the charts.
        note: text in the legend of the first chart.
    """

    key: str
    title: str
    texts: Sequence[str] = ()
    charts: Sequence[PageChart] = ()
    note: str = ""
    tables: Sequence[Table] = ()


def to_html(report: Report, *, in_run_folder: bool = False) -> str:
    """Report as one self-contained page, without network and with its own script only.

    Args:
        in_run_folder: True if the page will be in the run folder, so that it can link to traces there.
    """
    n_rows = sum(len(comparison.rows) for comparison in report.comparisons)
    charts = PageCharts()
    return template("report.html.j2").render(
        report=report,
        in_run_folder=in_run_folder,
        heads=[(report.run_in_words(origin.run), head_of(origin)) for origin in report.origins],
        summary=summary_table(report),
        matrices=list(_matrices(report, charts)),
        sections=[_section(report, number, charts) for number in range(len(report.comparisons))],
        marks=legend_of(FORMS),
        problems=problem_table(report.problems) if report.problems else None,
        with_logs=[problem for problem in report.problems if problem.log],
        differences=difference_table(report),
        residuals=None if report.residuals is None else residual_table(report.residuals),
        residuals_text="" if report.residuals is None else residuals_text(report.residuals),
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
        correct=_CORRECT,
        data=document(report, without=_DRAWN) if n_rows <= _MANY_ROWS else None,
        charts=packed(
            {
                "charts": charts.data,
                "noun": "strategies",
                "kinds": _kinds(report),
                "ratios": {
                    comparison_id(number): _ratios(comparison)
                    for number, comparison in enumerate(report.comparisons)
                },
            }
        ),
    )


def _matrices(report: Report, charts: PageCharts) -> Iterator[dict[str, object]]:
    for number, matrix in enumerate(report.fault_matrices):
        name = faults_id(number)
        yield {
            "id": name,
            "matrix": matrix,
            "headline": front_line(matrix),
            "table": fault_table(matrix),
            "chart": charts.add(f"{name}-front", fault_front(matrix)),
        }


def _kinds(report: Report) -> dict[str, dict[str, list[str]]]:
    """Kinds for the filter: section → strategy → its kinds.

    The section without a name has all strategies, for tables and charts over several comparisons.
    """
    sections = {
        comparison_id(number): {
            row.strategy: {row.class_, _CORRECT} if can_win(row) else {row.class_} for row in comparison.rows
        }
        for number, comparison in enumerate(report.comparisons)
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
    """Baseline → its rate, and strategy → its ratio in table and chart, for each baseline to choose from."""
    rates = {row.strategy: row.rate.value for row in comparison.rows if row.rate is not None}

    def texts(row: Row, base: str) -> dict[str, object]:
        ratio = comparison.other_baselines[base].get(row.strategy)
        against = replace(row, is_baseline=row.strategy == base, ratio=ratio)
        cell, (value, note) = ratio_cell(against), standing(against)
        return {"cell": [cell.text, cell.note, cell.value], "lane": [value, note]}

    return {
        base: {"rate": rates[base], "rows": {row.strategy: texts(row, base) for row in comparison.rows}}
        for base in comparison.other_baselines
    }


def _section(report: Report, number: int, charts: PageCharts) -> dict[str, object]:
    comparison, name = report.comparisons[number], comparison_id(number)
    return {
        "id": name,
        "comparison": comparison,
        "failures": failure_texts(comparison),
        "warnings": [(note.text, SUBJECTS[note.kind]) for note in top_warnings(comparison)],
        "ranking": charts.add(f"{name}-ranking", ranking(comparison)),
        "parts": list(_parts(report, comparison, name, charts)),
        "matrices": [(row.strategy, heat) for row in comparison.rows if (heat := _heat(row))],
        "placements": [
            (row, table) for row in comparison.rows if (table := placement_table(row)) is not None
        ],
        "traces": [row for row in comparison.rows if row.traces],
    }


def _parts(report: Report, comparison: Comparison, name: str, charts: PageCharts) -> Iterator[Part]:
    for section in sections_of(report, comparison):
        part = _part(section, comparison, name, charts)
        if part.texts or part.charts or part.tables or part.key == PLAN.key:
            yield part


def _part(section: Section, comparison: Comparison, name: str, charts: PageCharts) -> Part:
    pictures = (charts.add(f"{name}-{chart}", draw(comparison)) for chart, draw in section.charts.items())
    return Part(
        key=section.key,
        title=section.title,
        texts=section.texts(comparison),
        charts=[picture for picture in pictures if picture is not None],
        note=section.note(comparison) if section.note else "",
        tables=[table for draw in section.tables if (table := draw(comparison)) is not None],
    )


def _heat(row: Row) -> list[list[tuple[str, str]]]:
    """TCP matrix as bytes in words and their share of the largest cell; empty if nothing was sent."""
    if row.tcp_matrix is None:
        return []
    top = max((value for line in row.tcp_matrix for value in line if value is not None), default=0.0)
    if top <= 0:
        return []
    return [[(byte_count(value), f"{(value or 0.0) / top:.2f}") for value in line] for line in row.tcp_matrix]
