"""CSV and JSON: the rows of a report as data, under names and in an order that stay."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from reports.rows import Comparison, Mean, Report, Row, TimeSplit
from reports.statistics import Estimate, Ratio

_FORMULA_STARTS = tuple("=+-@|%")
_CONTROL_STARTS = tuple("\t\r\n")

_Column: TypeAlias = tuple[str, Callable[[Comparison, Row], object]]


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
        [csv_cell(of(comparison, row)) for _, of in _COLUMNS]
        for comparison in report.comparisons
        for row in comparison.rows
    )
    return out.getvalue()


def _mean(name: str, of: Callable[[Row], Mean | None]) -> _Column:
    return name, lambda _, row: _value(of(row))


def _row(name: str, of: Callable[[Row], object]) -> _Column:
    return name, lambda _, row: of(row)


def _estimate(name: str, of: Callable[[Row], Estimate | Ratio | None]) -> tuple[_Column, ...]:
    """A figure and the limits of its interval."""

    def limit(row: Row, side: str) -> object:
        figure = of(row)
        return getattr(figure.interval, side) if figure and figure.interval else None

    return (
        _row(name, lambda row: figure.value if (figure := of(row)) else None),
        _row(f"{name}_low", lambda row: limit(row, "low")),
        _row(f"{name}_high", lambda row: limit(row, "high")),
    )


def _range(name: str, of: Callable[[Row], Mean | None]) -> tuple[_Column, ...]:
    """The least and the greatest of the repeats behind a mean, and how many there are."""
    return (
        _row(f"{name}_least", lambda row: mean.low if (mean := of(row)) else None),
        _row(f"{name}_greatest", lambda row: mean.high if (mean := of(row)) else None),
        _row(f"{name}_n", lambda row: mean.n if (mean := of(row)) else None),
    )


def _split(field: str) -> _Column:
    return _row(
        f"traced_{field}", lambda row: _value(getattr(row.time_split, field)) if row.time_split else None
    )


def _problem(name: str, field: str) -> _Column:
    return _row(name, lambda row: getattr(row.problems[0], field) if row.problems else None)


def _on_front(comparison: Comparison, row: Row) -> bool | None:
    trade_off = comparison.curves.trade_off
    points = trade_off.points if trade_off else ()
    return next((point.on_front for point in points if point.strategy == row.strategy), None)


def _variable_bytes(comparison: Comparison, row: Row) -> int | None:
    """What variables and slots take of the worker that holds most."""
    of = next((each for each in comparison.curves.memory if each.strategy == row.strategy), None)
    known = [n_bytes for n_bytes in (of.variable_bytes or ()) if n_bytes is not None] if of else []
    return max(known, default=None)


def _value(mean: Mean | None) -> float | None:
    return None if mean is None else mean.value


_LATER_OF_SPLIT = ("copy_s", "host_s")
_FIRST: Iterable[_Column] = (
    ("run", lambda each, _: each.run),
    ("workload", lambda each, _: each.workload),
    ("provider", lambda each, _: each.provider),
    ("device", lambda each, _: each.device),
    ("workers", lambda each, _: each.workers),
    ("replicas", lambda each, _: each.replicas),
    ("batch_size", lambda each, _: each.batch_size),
    ("link_requested_mbit", lambda each, _: each.link_requested_mbit),
    ("precision", lambda each, _: each.precision),
    ("xla", lambda each, _: each.xla),
    ("scenario", lambda each, _: each.scenario or None),
    _row("strategy", lambda row: row.strategy),
    _row("class", lambda row: row.class_),
    _row("status", lambda row: row.status),
    _row("rank", lambda row: row.rank),
    _row("n", lambda row: row.n),
    _row("n_repeats", lambda row: row.n_repeats),
    ("baseline", lambda each, _: each.baseline),
    *_estimate("examples_per_s", lambda row: row.rate),
    *_estimate("window_examples_per_s", lambda row: row.window_rate),
    *_estimate("ratio", lambda row: row.ratio),
    _row("ratio_p", lambda row: row.ratio.p_value if row.ratio else None),
    *_estimate("step_p50_s", lambda row: row.p50_s),
    *_estimate("step_p90_s", lambda row: row.p90_s),
    *_estimate("step_p99_s", lambda row: row.p99_s),
    _mean("payload_bytes_per_step", lambda row: row.payload_bytes),
    _mean("tcp_bytes_per_step", lambda row: row.tcp_bytes),
    _mean("interface_bytes_per_step", lambda row: row.interface_bytes),
    _mean("between_hosts_bytes_per_step", lambda row: row.between_hosts_bytes),
    _mean("resent_bytes_per_step", lambda row: row.resent_bytes),
    _row("tcp_over_payload", lambda row: row.tcp_over_payload),
    _mean("exposed_comm_s", lambda row: row.exposed_comm_s),
    _mean("input_s", lambda row: row.input_s),
    _mean("input_share", lambda row: row.input_share),
    _row("input_bound", lambda row: row.input_bound),
    *(_split(item.name) for item in dataclasses.fields(TimeSplit) if item.name not in _LATER_OF_SPLIT),
    _mean("codec_s", lambda row: row.codec_s),
    _mean("rule_s", lambda row: row.rule.rule_s if row.rule else None),
    _row("n_faulty", lambda row: row.rule.n_faulty if row.rule else None),
    _mean("accuracy", lambda row: row.metrics.get("accuracy")),
    ("link_measured_mbit", lambda each, _: _value(each.link_measured_mbit)),
    _mean("predicted_step_s", lambda row: row.predicted_step_s),
    _mean("cpu_s_per_step", lambda row: row.cpu_s),
    _mean("package_j_per_step", lambda row: row.package_j),
    _mean("gpu_j_per_step", lambda row: row.gpu_j),
    _mean("gpu_busy", lambda row: row.gpu_busy),
    _row("gpu_own_bytes", lambda row: row.gpu_own_bytes),
    _mean("gpu_link_bytes_per_step", lambda row: row.gpu_link_bytes),
    _mean("gpu_pcie_bytes_per_step", lambda row: row.gpu_pcie_bytes),
    _row("price_per_hour", lambda row: row.price_per_hour),
    _mean("cost_per_million_examples", lambda row: row.cost_per_million),
    _row("mark", lambda row: row.mark.kind),
    _row("max_update_error", lambda row: row.mark.max_update_error),
    _row("tolerance", lambda row: row.mark.tolerance),
    _mean("loss_first", lambda row: row.loss_first),
    _mean("loss_last", lambda row: row.loss_last),
    _mean("loss_first_step", lambda row: row.loss_first_step),
    _mean("loss_last_step", lambda row: row.loss_last_step),
    _problem("error_type", "type"),
    _problem("error_stage", "stage"),
    _problem("error_message", "message"),
    _row("notes", lambda row: "; ".join(row.notes) or None),
)
_LATER: Iterable[_Column] = (
    _row("is_baseline", lambda row: row.is_baseline),
    ("batch_rule", lambda each, _: each.batch_rule),
    ("on_front", _on_front),
    *_range("exposed_comm_s", lambda row: row.exposed_comm_s),
    *_range("tcp_bytes_per_step", lambda row: row.tcp_bytes),
    _row("payload_is_bound", lambda row: row.payload_is_bound),
    _mean("step_over_predicted", lambda row: row.step_over_predicted),
    _mean("warmup_steps", lambda row: row.warmup_steps),
    _mean("transform_s", lambda row: row.transform_s),
    _row("peak_rss_bytes", lambda row: row.peak_rss_bytes),
    ("variable_bytes", _variable_bytes),
    _row("noise_floor", lambda row: row.mark.noise_floor),
    _mean("metric_step", lambda row: row.metric_step),
    _row("rule", lambda row: row.rule.rule if row.rule else None),
    _mean("reshards_per_run", lambda row: row.resharding.reshards if row.resharding else None),
    _mean("reshard_sent_bytes", lambda row: row.resharding.sent_bytes if row.resharding else None),
    ("shape", lambda each, _: each.shape),
    _row("gpu_peak_bytes", lambda row: row.gpu_peak_bytes),
    ("tf32", lambda each, _: each.tf32),
    _row("host_bound", lambda row: row.host_bound),
    *map(_split, _LATER_OF_SPLIT),
    ("replicas_on_gpus", lambda each, _: "+".join(map(str, each.replicas_on_gpus)) or None),
)
_COLUMNS: tuple[_Column, ...] = (*_FIRST, *_LATER)
COLUMN_NAMES = tuple(name for name, _ in _COLUMNS)
"""New ones come last: who reads columns by their place must not read others tomorrow."""


SCHEMA = 1


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
