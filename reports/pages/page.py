"""The HTML report: one self-contained page without scripts."""

from __future__ import annotations

import jinja2
import yaml
from markupsafe import Markup

from reports.figures import charts
from reports.figures.fault_front import fault_front
from reports.figures.frame import both
from reports.load import MAX_SHOWN_REPEATS
from reports.marks import WORDS
from reports.pages.code_spans import code_spans
from reports.pages.exports import document
from reports.quantities import byte_count
from reports.rows import Comparison, Report, Row
from reports.tables.checks import check_table, problem_table
from reports.tables.cost import byte_table, cost_table
from reports.tables.resharding import reshard_table
from reports.tables.robustness import fault_table, front_line, rule_table
from reports.tables.speed import speed_table, step_table, trace_table


def to_html(report: Report) -> str:
    """The report as one self-contained page without scripts."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("reports", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["byte_count"] = byte_count
    environment.filters["code_spans"] = code_spans
    return environment.get_template("report.html.j2").render(
        report=report,
        sections=[_section(comparison, i) for i, comparison in enumerate(report.comparisons)],
        matrices=[
            {
                "matrix": matrix,
                "headline": front_line(matrix),
                "table": fault_table(matrix),
                "chart": both(fault_front, matrix),
            }
            for matrix in report.fault_matrices
        ],
        problems=problem_table(report.problems) if report.problems else None,
        words=WORDS,
        experiments=[
            (origin.run, yaml.safe_dump(_plain(origin.experiment), sort_keys=False, allow_unicode=True))
            for origin in report.origins
            if origin.experiment
        ],
        # The dots are drawn already, and would double the size of the page.
        data=document(report, without=("steps",)),
    )


def _section(comparison: Comparison, number: int) -> dict[str, object]:
    """What the template needs for one workload and shape."""
    return {
        "id": f"comparison-{number}",
        "comparison": comparison,
        "speed": speed_table(comparison),
        "steps": step_table(comparison),
        "traced": trace_table(comparison),
        "bytes": byte_table(comparison),
        "checks": check_table(comparison),
        "costs": cost_table(comparison),
        "resharding": reshard_table(comparison),
        "rules": rule_table(comparison),
        "ranking_chart": both(charts.ranking, comparison),
        "byte_chart": both(charts.bytes_sent, comparison),
        "step_chart": both(charts.step_times, comparison),
        "split_chart": both(charts.time_split, comparison),
        "matrices": [(row.strategy, _heat(row)) for row in comparison.rows if _heat(row)],
        "n_undrawn": sum(row.n - len(row.steps) for row in comparison.rows if row.n > MAX_SHOWN_REPEATS),
        "n_thinned": sum(steps.thinned_from is not None for row in comparison.rows for steps in row.steps),
    }


def _heat(row: Row) -> list[list[tuple[str, Markup]]]:
    """The TCP matrix as shown bytes and their share of the largest cell; empty when nothing was sent."""
    if row.tcp_matrix is None:
        return []
    top = max((value for line in row.tcp_matrix for value in line if value is not None), default=0.0)
    if top <= 0:
        return []
    return [
        [(byte_count(value), Markup("{:.2f}").format((value or 0.0) / top)) for value in line]
        for line in row.tcp_matrix
    ]


def _plain(value: object) -> object:
    """Read-only mappings as plain ones, which is all that YAML's safe writer takes."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
