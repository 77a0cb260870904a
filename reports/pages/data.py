"""CSV and JSON: the rows of a report as data, under names and in an order that stay."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Callable, Collection, Iterator
from typing import TypeAlias

from harness.canonical import field_names, json_value
from reports.rows.figure import Figure, at
from reports.rows.report import Comparison, Report
from reports.rows.row import Row, all_figures

SCHEMA = 4
_FORMULA_STARTS = tuple("=+-@|%")
_CONTROL_STARTS = tuple("\t\r\n")

_Reader: TypeAlias = Callable[[Comparison, Row], object]

_ORDER = """
    run workload provider device workers replicas batch_size link_requested_mbit precision xla scenario
    strategy class status rank n n_repeats baseline examples_per_s window_examples_per_s ratio ratio_p
    step_p50_s step_p90_s step_p99_s payload_bytes_per_step tcp_bytes_per_step interface_bytes_per_step
    between_hosts_bytes_per_step resent_bytes_per_step tcp_over_payload exposed_comm_s input_s
    input_share input_bound traced_step_s traced_compute_s traced_transfer_s traced_wait_s traced_rest_s
    traced_receiving_s traced_hidden_share traced_received_bytes traced_n_transfers
    traced_algorithm_bytes_per_s traced_bus_bytes_per_s codec_s rule_s n_faulty accuracy
    link_measured_mbit predicted_step_s cpu_s_per_step package_j_per_step gpu_j_per_step gpu_busy
    gpu_own_bytes gpu_link_bytes_per_step gpu_pcie_bytes_per_step price_per_hour
    cost_per_million_examples mark max_update_error tolerance loss_first loss_last loss_first_step
    loss_last_step error_type error_stage error_message notes is_baseline batch_rule on_front
    exposed_comm_s_least exposed_comm_s_greatest exposed_comm_s_n tcp_bytes_per_step_least
    tcp_bytes_per_step_greatest tcp_bytes_per_step_n payload_is_bound step_over_predicted warmup_steps
    transform_s peak_rss_bytes variable_bytes noise_floor metric_step rule reshards_per_run
    reshard_sent_bytes shape gpu_peak_bytes tf32 host_bound traced_copy_s traced_host_s replicas_on_gpus
    gpu_w usual_name predicted_step_s_low predicted_step_s_high
"""
"""Columns in the order in which readers by place know them, each before the limits of its interval."""


def csv_cell(value: object) -> object:
    """A cell that no spreadsheet takes for a formula; finite numbers stay numbers, others are empty.

    Source:
        OWASP, "CSV Injection": a leading =, +, -, @, tab or carriage return starts a formula.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return None
    # Spreadsheets drop leading white space before they look for a formula.
    if isinstance(value, str) and (value.lstrip()[:1] in _FORMULA_STARTS or value[:1] in _CONTROL_STARTS):
        return f"'{value}"
    return value


def to_csv(report: Report) -> str:
    """One line per run, workload, shape and strategy; raw numbers, empty where missing."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMN_NAMES)
    writer.writerows(
        [csv_cell(read(comparison, row)) for read in _COLUMNS.values()]
        for comparison in report.comparisons
        for row in comparison.rows
    )
    return out.getvalue()


def _columns() -> dict[str, _Reader]:
    order = _ORDER.split()
    fields = field_names(Comparison)
    columns: dict[str, _Reader] = {name: _of_comparison(name) for name in order if name in fields}
    columns |= _NO_FIGURES
    for part, figure in all_figures():
        if figure.csv:
            columns.update(_figure_columns(part, figure))
    known = {name: place for place, name in enumerate(order)}

    def place(name: str) -> int:
        # Limits stay behind their figure, since sorting keeps the order of equals.
        return known.get(name, known.get(name.removesuffix("_low").removesuffix("_high"), len(known)))

    return dict(sorted(columns.items(), key=lambda item: place(item[0])))


def _figure_columns(part: str, figure: Figure) -> Iterator[tuple[str, _Reader]]:
    path = f"{part}.{figure.name}" if part else figure.name
    yield figure.csv, _reader(path, "value")
    if figure.has_interval:
        for limit in ("low", "high"):
            yield f"{figure.csv}_{limit}", _reader(path, f"interval.{limit}")
    if figure.csv_range:
        for suffix, of_mean in (("least", "low"), ("greatest", "high"), ("n", "n")):
            yield f"{figure.csv}_{suffix}", _reader(path, of_mean)


def _reader(path: str, of_figure: str) -> _Reader:
    """Reader of a row's number, or of a part of its figure."""
    read, part = at(path), at(of_figure)

    def read_part(_: Comparison, row: Row) -> object:
        figure = read(row)
        return part(figure) if dataclasses.is_dataclass(figure) else figure

    return read_part


def _of_row(read: Callable[[Row], object]) -> _Reader:
    return lambda _, row: read(row)


def _of_comparison(path: str) -> _Reader:
    return lambda comparison, _: at(path)(comparison)


def _problem(name: str) -> _Reader:
    return _of_row(lambda row: getattr(row.problems[0], name) if row.problems else None)


def _on_front(comparison: Comparison, row: Row) -> bool | None:
    trade_off = comparison.curves.trade_off
    points = trade_off.points if trade_off else ()
    return next((point.on_front for point in points if point.strategy == row.strategy), None)


def _variable_bytes(comparison: Comparison, row: Row) -> int | None:
    memory = next((one for one in comparison.curves.memory if one.strategy == row.strategy), None)
    of_workers = memory.variable_bytes or () if memory else ()
    return max((n_bytes for n_bytes in of_workers if n_bytes is not None), default=None)


_NO_FIGURES: dict[str, _Reader] = {
    "scenario": lambda comparison, _: comparison.scenario or None,
    "link_measured_mbit": _of_comparison("link_measured_mbit.value"),
    "on_front": _on_front,
    "variable_bytes": _variable_bytes,
    "replicas_on_gpus": lambda comparison, _: "+".join(map(str, comparison.replicas_on_gpus)) or None,
    "ratio_p": _of_row(at("ratio.p_value")),
    "accuracy": _of_row(lambda row: at("value")(row.metrics.get("accuracy"))),
    "mark": _of_row(at("mark.kind")),
    "max_update_error": _of_row(at("mark.max_update_error")),
    "tolerance": _of_row(at("mark.tolerance")),
    "noise_floor": _of_row(at("mark.noise_floor")),
    "error_type": _problem("type"),
    "error_stage": _problem("stage"),
    "error_message": _problem("message"),
    "notes": _of_row(lambda row: "; ".join(row.notes) or None),
}
_COLUMNS = _columns()
COLUMN_NAMES = tuple(_COLUMNS)


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
        without: names of fields to omit everywhere.
    """
    data: dict[str, object] = {"schema": SCHEMA}
    for item in dataclasses.fields(report):
        if item.name not in without:
            data[item.name] = json_value(getattr(report, item.name), without=without)
    return data
