"""The HTML report: one self-contained page, whole without scripts, and with them open to questions."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources

import jinja2
import yaml
from markupsafe import Markup

from reports.figures import charts, curves
from reports.figures.fault_front import fault_front
from reports.figures.renderer import charts_source, echarts_source
from reports.load import MAX_SHOWN_REPEATS
from reports.marks import WORDS
from reports.pages.code_spans import code_spans
from reports.pages.exports import document
from reports.pages.pictures import Pictures
from reports.quantities import byte_count, interval_of, times
from reports.recommendation.candidates import can_win
from reports.rows import Comparison, Report, Row
from reports.tables.checks import check_table, problem_table
from reports.tables.cost import byte_table, cost_table
from reports.tables.curves import link_table, scaling_table, trade_off_table
from reports.tables.resharding import reshard_table
from reports.tables.robustness import fault_table, front_line, rule_table
from reports.tables.speed import speed_table, step_table, trace_table
from reports.tables.training import loss_table, round_table
from reports.tables.workers import balance_table, memory_table

_MAY_WIN = "may win"


def to_html(report: Report) -> str:
    """The report as one self-contained page, which asks for nothing and runs only its own script."""
    pictures = Pictures()
    script = page_script()
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            report=report,
            sections=[_section(comparison, i, pictures) for i, comparison in enumerate(report.comparisons)],
            matrices=[
                {
                    "matrix": matrix,
                    "headline": front_line(matrix),
                    "table": fault_table(matrix),
                    "chart": pictures.add(f"faults-{i}-front", fault_front(matrix)),
                }
                for i, matrix in enumerate(report.fault_matrices)
            ],
            scalings=[
                {
                    "scaling": scaling,
                    "table": scaling_table(scaling),
                    "chart": pictures.add(f"scaling-{i}-rates", curves.scaling(scaling)),
                }
                for i, scaling in enumerate(report.scaling)
            ],
            links=[
                {
                    "links": links,
                    "table": link_table(links),
                    "chart": pictures.add(f"links-{i}-rates", curves.link_sensitivity(links)),
                }
                for i, links in enumerate(report.link_sensitivity)
            ],
            problems=problem_table(report.problems) if report.problems else None,
            words=WORDS,
            experiments=[
                (origin.run, yaml.safe_dump(_plain(origin.experiment), sort_keys=False, allow_unicode=True))
                for origin in report.origins
                if origin.experiment
            ],
            kinds=sorted({row.class_ for comparison in report.comparisons for row in comparison.rows}),
            may_win=_MAY_WIN,
            # The dots are drawn already, and would double the size of the page.
            data=document(report, without=("steps", "other_baselines")),
            charts={
                "charts": pictures.specifications(),
                "noun": "strategies",
                "filterable": _strategies(report),
                "ratios": {f"comparison-{i}": _ratios(each) for i, each in enumerate(report.comparisons)},
            },
            script=script,
            script_hash=script_hash(script),
        )
    )


def environment() -> jinja2.Environment:
    """What pages are written by: everything is escaped that is not markup already."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("reports", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.filters["byte_count"] = byte_count
    made.filters["code_spans"] = code_spans
    return made


def page_script() -> Markup:
    """The one script of a page: the library that draws, what charts are made of, and what readers can do."""
    own = resources.files("reports.templates").joinpath("page.js").read_text(encoding="utf-8")
    # They are files of this package, and none of them holds the end of a script element.
    return Markup("\n").join(Markup(source) for source in (echarts_source(), charts_source(), own))  # noqa: S704


def script_hash(script: str) -> str:
    """What a page's policy names its one script by."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _strategies(report: Report) -> dict[str, object]:
    """What readers can filter strategies by."""
    kinds: dict[str, set[str]] = {}
    for comparison in report.comparisons:
        for row in comparison.rows:
            kinds.setdefault(row.strategy, set()).update(
                {row.class_, _MAY_WIN} if can_win(row) else {row.class_}
            )
    for matrix in report.fault_matrices:
        for line in matrix.lines:
            kinds.setdefault(line.strategy, set())
    return {name: {"kinds": sorted(each)} for name, each in kinds.items()}


def _ratios(comparison: Comparison) -> dict[str, object]:
    """Baseline → strategy → its ratio as it is shown, for the baselines that readers may choose."""
    rates = {row.strategy: row.rate.value for row in comparison.rows if row.rate is not None}
    return {
        base: {base: {"value": "1", "note": "baseline", "ratio": 1.0, "rate": rates[base]}}
        | {
            name: {"value": times(lead.value), "note": interval_of(lead), "ratio": lead.value}
            for name, lead in ratios.items()
        }
        for base, ratios in comparison.other_baselines.items()
    }


def _section(comparison: Comparison, number: int, pictures: Pictures) -> dict[str, object]:
    """What the template needs for one workload and shape."""
    name = f"comparison-{number}"
    return {
        "id": name,
        "comparison": comparison,
        "speed": speed_table(comparison),
        "steps": step_table(comparison),
        "traced": trace_table(comparison),
        "bytes": byte_table(comparison),
        "checks": check_table(comparison),
        "costs": cost_table(comparison),
        "resharding": reshard_table(comparison),
        "rules": rule_table(comparison),
        "ranking_chart": pictures.add(f"{name}-ranking", charts.ranking(comparison)),
        "byte_chart": pictures.add(f"{name}-bytes", charts.bytes_sent(comparison)),
        "step_chart": pictures.add(f"{name}-steps", charts.step_times(comparison)),
        "split_chart": pictures.add(f"{name}-split", charts.time_split(comparison)),
        "traced_chart": pictures.add(f"{name}-traced", charts.traced_split(comparison)),
        "trade_off": trade_off_table(comparison),
        "trade_off_chart": pictures.add(f"{name}-trade-off", curves.trade_off(comparison)),
        "balance": balance_table(comparison),
        "rounds": round_table(comparison),
        "rounds_chart": pictures.add(f"{name}-rounds", curves.rounds_over_time(comparison)),
        "losses": loss_table(comparison),
        "loss_charts": [
            picture
            for by, draw in (("step", curves.losses_by_step), ("second", curves.losses_by_second))
            if (picture := pictures.add(f"{name}-loss-by-{by}", draw(comparison))) is not None
        ],
        "memory": memory_table(comparison),
        "memory_chart": pictures.add(f"{name}-memory", curves.memory(comparison)),
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
