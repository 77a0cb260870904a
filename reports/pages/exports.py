"""Markdown, CSV and JSON, each through its own escaping."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence

from reports.rows import Comparison, LinkSensitivity, Mean, Report, Row, Scaling, TimeSplit
from reports.statistics import Estimate, Ratio
from reports.tables.cells import Cell
from reports.tables.checks import check_table, problem_table
from reports.tables.cost import byte_table, cost_table
from reports.tables.curves import link_table, scaling_table, trade_off_table
from reports.tables.differences import difference_table
from reports.tables.placements import pass_table
from reports.tables.resharding import reshard_table
from reports.tables.robustness import fault_table, front_line, rule_table
from reports.tables.speed import speed_table, step_table, trace_table
from reports.tables.table import Table

SCHEMA = 1
_FORMULA_STARTS = tuple("=+-@|%")
_CONTROL_STARTS = tuple("\t\r\n")
_MARKDOWN_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~$&-])")


def markdown_text(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    escaped = _MARKDOWN_SPECIAL.sub(r"\\\1", " ".join(text.split()))
    # "1." at the start of a line would become a list.
    return re.sub(r"^(\d+)\.", r"\1\\.", escaped)


def csv_cell(value: object) -> object:
    """A cell that no spreadsheet takes for a formula; numbers stay numbers.

    Source:
        OWASP, "CSV Injection": a leading =, +, -, @, tab or carriage return starts a formula.
    """
    # Spreadsheets drop leading white space before they look for a formula.
    if isinstance(value, str) and (value.lstrip()[:1] in _FORMULA_STARTS or value[:1] in _CONTROL_STARTS):
        return f"'{value}"
    return value


def to_markdown(report: Report) -> str:
    """The report as GitHub-flavoured Markdown."""
    lines = [f"# {markdown_text(report.title)}", ""]
    for comparison in report.comparisons:
        lines += [f"## {markdown_text(comparison.workload)}", "", markdown_text(comparison.shape), ""]
        lines += [f"**{markdown_text(comparison.verdict.headline)}**", ""]
        lines += [f"- {markdown_text(text)}" for text in (*comparison.verdict.details, *comparison.notes)]
        for table in (
            speed_table,
            step_table,
            trace_table,
            byte_table,
            trade_off_table,
            reshard_table,
            rule_table,
            check_table,
            cost_table,
            pass_table,
        ):
            content = table(comparison)
            lines += [] if content is None else ["", *markdown_table(content)]
        lines.append("")
    for matrix in report.fault_matrices:
        lines += [f"## {markdown_text(matrix.title)}", ""]
        lines += [markdown_text(matrix.shape), "", f"**{markdown_text(front_line(matrix))}**", ""]
        lines += [*markdown_table(fault_table(matrix)), ""]
    across: tuple[Scaling | LinkSensitivity, ...] = (*report.scaling, *report.link_sensitivity)
    lines += [line for curves in across for line in _across(curves)]
    if report.problems:
        lines += ["## Failures", "", *markdown_table(problem_table(report.problems)), ""]
    if report.left_out:
        lines += ["## Left out", ""]
        lines += [f"- {markdown_text(item.where)}: {markdown_text(item.why)}" for item in report.left_out]
        lines.append("")
    differing = difference_table(report)
    if differing is not None:
        lines += ["## What differs", "", markdown_text(differing.caption), "", *markdown_table(differing), ""]
    lines += ["## What ran where", ""]
    for origin in report.origins:
        lines += [f"### {markdown_text(origin.run)}", ""]
        lines += [f"- {markdown_text(name)}: {markdown_text(value)}" for name, value in origin.facts]
        lines.append("")
    return "\n".join(lines)


def _across(curves: Scaling | LinkSensitivity) -> list[str]:
    """Lines of what several comparisons tell together."""
    if isinstance(curves, Scaling):
        title, table, sentences = "Scaling", scaling_table(curves), []
    else:
        title, table = "Links", link_table(curves)
        sentences = list(curves.sentences)
    return [
        f"## {markdown_text(f'{title}: {curves.workload}')}",
        "",
        markdown_text(curves.shape),
        "",
        *(f"- {markdown_text(sentence)}" for sentence in sentences),
        *([""] if sentences else []),
        *markdown_table(table),
        "",
    ]


def to_csv(report: Report) -> str:
    """One line per run, workload, shape and strategy; raw numbers, empty where missing."""
    lines = [_flat(comparison, row) for comparison in report.comparisons for row in comparison.rows]
    out = io.StringIO()
    writer = csv.DictWriter(
        out, fieldnames=list(lines[0]) if lines else ["workload", "strategy"], lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows({name: csv_cell(value) for name, value in line.items()} for line in lines)
    return out.getvalue()


def to_json(report: Report) -> str:
    """The rows as one JSON document; missing and infinite numbers are null."""
    return (
        json.dumps(
            document(report, without=("other_baselines",)), indent=2, ensure_ascii=False, allow_nan=False
        )
        + "\n"
    )


def document(report: Report, *, without: Collection[str] = ()) -> dict[str, object]:
    """The rows as plain data, names as in the contract where it has one.

    Args:
        without: fields that are left out wherever they are.
    """
    fields = [item.name for item in dataclasses.fields(report) if item.name not in without]
    return {"schema": SCHEMA} | {name: _plain(getattr(report, name), without) for name in fields}


def _plain(value: object, without: Collection[str]) -> object:
    # Scalars first: a report has millions of them.
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value):
        return {
            item.name.rstrip("_"): _plain(getattr(value, item.name), without)
            for item in dataclasses.fields(value)
            if item.name not in without
        }
    if isinstance(value, Mapping):
        return {str(key): _plain(item, without) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_plain(item, without) for item in value]
    return str(value)


def markdown_table(table: Table) -> list[str]:
    """Lines of a table, every cell escaped."""
    return [
        "| " + " | ".join(markdown_text(column.name) for column in table.columns) + " |",
        "|" + "|".join(" ---: " if column.numeric else " --- " for column in table.columns) + "|",
        *("| " + " | ".join(_markdown_cell(cell) for cell in row) + " |" for row in table.rows),
    ]


def _markdown_cell(cell: Cell) -> str:
    return (
        f"{markdown_text(cell.text)} ({markdown_text(cell.note)})" if cell.note else markdown_text(cell.text)
    )


def _flat(comparison: Comparison, row: Row) -> dict[str, object]:
    """One row as named scalars."""
    problem = row.problems[0] if row.problems else None
    return {
        "run": comparison.run,
        "workload": comparison.workload,
        "provider": comparison.provider,
        "device": comparison.device,
        "workers": comparison.workers,
        "replicas": comparison.replicas,
        "batch_size": comparison.batch_size,
        "link_requested_mbit": comparison.link_requested_mbit,
        "precision": comparison.precision,
        "xla": comparison.xla,
        "scenario": comparison.scenario or None,
        "strategy": row.strategy,
        "class": row.class_,
        "status": row.status,
        "rank": row.rank,
        "n": row.n,
        "n_repeats": row.n_repeats,
        "baseline": comparison.baseline,
        **_estimate_cells("examples_per_s", row.rate),
        **_estimate_cells("window_examples_per_s", row.window_rate),
        **_estimate_cells("ratio", row.ratio),
        "ratio_p": row.ratio.p_value if row.ratio else None,
        **_estimate_cells("step_p50_s", row.p50_s),
        **_estimate_cells("step_p90_s", row.p90_s),
        **_estimate_cells("step_p99_s", row.p99_s),
        "payload_bytes_per_step": _value(row.payload_bytes),
        "tcp_bytes_per_step": _value(row.tcp_bytes),
        "interface_bytes_per_step": _value(row.interface_bytes),
        "between_hosts_bytes_per_step": _value(row.between_hosts_bytes),
        "resent_bytes_per_step": _value(row.resent_bytes),
        "tcp_over_payload": row.tcp_over_payload,
        "exposed_comm_s": _value(row.exposed_comm_s),
        "input_s": _value(row.input_s),
        "input_share": _value(row.input_share),
        "input_bound": row.input_bound,
        **_split_cells(row.time_split),
        "codec_s": _value(row.codec_s),
        "rule_s": _value(row.rule.rule_s) if row.rule else None,
        "n_faulty": row.rule.n_faulty if row.rule else None,
        "accuracy": _value(row.metrics.get("accuracy")),
        "link_measured_mbit": _value(comparison.link_measured_mbit),
        "predicted_step_s": _value(row.predicted_step_s),
        "cpu_s_per_step": _value(row.cpu_s),
        "package_j_per_step": _value(row.package_j),
        "gpu_j_per_step": _value(row.gpu_j),
        "gpu_busy": _value(row.gpu_busy),
        "gpu_own_bytes": row.gpu_own_bytes,
        "gpu_link_bytes_per_step": _value(row.gpu_link_bytes),
        "gpu_pcie_bytes_per_step": _value(row.gpu_pcie_bytes),
        "price_per_hour": row.price_per_hour,
        "cost_per_million_examples": _value(row.cost_per_million),
        "mark": row.mark.kind,
        "max_update_error": row.mark.max_update_error,
        "tolerance": row.mark.tolerance,
        "loss_first": _value(row.loss_first),
        "loss_last": _value(row.loss_last),
        "loss_first_step": _value(row.loss_first_step),
        "loss_last_step": _value(row.loss_last_step),
        "error_type": problem.type if problem else None,
        "error_stage": problem.stage if problem else None,
        "error_message": problem.message if problem else None,
        "notes": "; ".join(row.notes) or None,
    }


def _estimate_cells(name: str, figure: Estimate | Ratio | None) -> dict[str, object]:
    interval = figure.interval if figure else None
    return {
        name: figure.value if figure else None,
        f"{name}_low": interval.low if interval else None,
        f"{name}_high": interval.high if interval else None,
    }


def _split_cells(split: TimeSplit | None) -> dict[str, object]:
    return {
        f"traced_{item.name}": _value(getattr(split, item.name)) if split else None
        for item in dataclasses.fields(TimeSplit)
    }


def _value(mean: Mean | None) -> float | None:
    return None if mean is None else mean.value
