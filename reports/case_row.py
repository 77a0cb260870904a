"""Row of one case from its records: figures of usable repeats, problems of the others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from harness.records.outcome import Evaluation
from harness.records.predictions import StoredPrediction
from harness.records.record import Record
from reports.marks import mark_of
from reports.rows.figure import combined
from reports.rows.parts import PassRow, PredictedStep, Problem, RowStatus
from reports.rows.repeat import is_traced
from reports.rows.row import LoopResharding, Row, RuleUse, TimeSplit
from reports.shapes import ComparedShape, shape_text
from reports.statistics import Interval, Mean, Ratio, mean_of


def is_usable(record: Record) -> bool:
    """True if a repeat has a throughput that may be compared."""
    return record.status == "ok" and bool(rates_of([record]))


def rates_of(records: Iterable[Record]) -> list[float]:
    """Throughput of each record at its median step time, if it has one."""
    rates = (record.median_examples_per_s for record in records)
    return [rate for rate in rates if rate is not None and 0.0 < rate < math.inf]


def case_row(
    name: str,
    records: Sequence[Record],
    usable: Sequence[Record],
    shape: ComparedShape,
    ratio: Ratio | None,
    prediction: StoredPrediction | None = None,
) -> Row:
    """Figures of one strategy over its usable repeats; the comparison adds steps, rank and baseline.

    Args:
        ratio: ratio to the baseline, None without one.
        prediction: predicted step of the case; None if it was not predicted.
    """
    predicted = None if prediction is None else _predicted_step(prediction)
    row = combined(
        Row,
        usable,
        strategy=name,
        class_=records[0].strategy_class,
        usual_name=records[0].usual_name,
        status=_status(records, usable),
        rank=None,
        is_baseline=False,
        n=len(rates_of(usable)),
        n_repeats=len(records),
        ratio=ratio,
        predicted_step_s=predicted,
        step_over_predicted=None if predicted is None else _step_over_predicted(usable, predicted),
        time_split=time_split_of(usable),
        resharding=_resharding(usable),
        rule=_rule(records),
        metrics=_metrics([r.evaluation for r in usable if r.evaluation]),
        price_per_hour=records[0].price_per_hour,
        mark=mark_of(records),
        tcp_matrix=mean_matrix([r.tcp_matrix for r in usable if r.tcp_matrix]),
        problems=_problems(name, records, shape),
        passes=_passes(usable),
        notes=tuple(dict.fromkeys(note for r in records for note in (*r.warnings, *r.notes))),
    )
    tcp, payload = row.tcp_bytes, row.payload_bytes
    overhead = tcp.value / payload.value if tcp and payload and payload.value > 0 else None
    return replace(row, tcp_over_payload=overhead)


def _predicted_step(prediction: StoredPrediction) -> PredictedStep:
    return PredictedStep(
        value=prediction.step_s,
        interval=Interval(low=prediction.interval.low, high=prediction.interval.high),
        limited_by=prediction.limited_by,
        extrapolated=prediction.extrapolated,
    )


def _step_over_predicted(usable: Sequence[Record], predicted: PredictedStep) -> Mean | None:
    measured_s = (record.median_step_s for record in usable)
    return mean_of([None if step_s is None else step_s / predicted.value for step_s in measured_s])


def time_split_of(records: Sequence[Record]) -> TimeSplit | None:
    """Time of traced steps by activity; None if no repeat has a usable trace."""
    traced = [record for record in records if is_traced(record)]
    return combined(TimeSplit, traced) if traced else None


def _resharding(usable: Sequence[Record]) -> LoopResharding | None:
    resharding = [record for record in usable if record.resharding]
    return combined(LoopResharding, resharding) if resharding else None


def _rule(records: Sequence[Record]) -> RuleUse | None:
    uses = [record.aggregation for record in records if record.aggregation]
    if not uses:
        return None
    n_steps = sum(use.n_steps or 0 for use in uses)
    chosen = [use.chosen for use in uses if use.chosen is not None]
    not_finite = [sum(use.not_finite) for use in uses if use.not_finite is not None]
    return combined(
        RuleUse,
        records,
        rule=uses[0].rule,
        n=uses[0].n,
        f=uses[0].f,
        n_faulty=uses[0].n_faulty,
        selects=uses[0].selects,
        not_finite=sum(not_finite) / n_steps if n_steps and not_finite else None,
        chosen=tuple(sum(column) / n_steps for column in zip(*chosen, strict=False))
        if n_steps and chosen
        else None,
    )


def mean_matrix(
    matrices: Sequence[tuple[tuple[float | None, ...], ...]],
) -> tuple[tuple[float | None, ...], ...] | None:
    """Mean of each cell over the repeats with a matrix of the first one's size."""
    size = next(map(len, matrices), 0)
    same_size = [m for m in matrices if len(m) == size]
    if not same_size:
        return None

    def cell(i: int, j: int) -> float | None:
        mean = mean_of([m[i][j] for m in same_size])
        return mean.value if mean else None

    return tuple(tuple(cell(i, j) for j in range(size)) for i in range(size))


def _passes(usable: Sequence[Record]) -> tuple[PassRow, ...]:
    first = next((record for record in usable if record.passes), None)
    if first is None or not first.passes:
        return ()
    names = [step.name for step in first.passes]
    alike = [r.passes for r in usable if r.passes and [step.name for step in r.passes] == names]
    rows: list[PassRow] = []
    before = first.nodes_before
    for i, step in enumerate(first.passes):
        seconds = mean_of([passes[i].seconds for passes in alike])
        if seconds is not None:
            added = None if before is None else step.nodes - before
            rows.append(PassRow(name=step.name, nodes=step.nodes, added=added, seconds=seconds))
        before = step.nodes
    return tuple(rows)


def _metrics(evaluations: Sequence[Evaluation]) -> Mapping[str, Mean]:
    names = dict.fromkeys(name for evaluation in evaluations for name in evaluation.metrics)
    means = {name: mean_of([evaluation.metrics.get(name) for evaluation in evaluations]) for name in names}
    return {name: mean for name, mean in means.items() if mean is not None}


def _status(records: Sequence[Record], usable: Sequence[Record]) -> RowStatus:
    """Status of a case: one implausible repeat makes the case implausible; a failed one only lowers n."""
    present = {record.status for record in records}
    if "implausible" in present:
        return "implausible"
    if usable:
        return "ok"
    return "skipped" if present == {"skipped"} else "failed"


def _problems(name: str, records: Sequence[Record], shape: ComparedShape) -> tuple[Problem, ...]:
    reasons: dict[tuple[RowStatus, str, str, str], list[int]] = {}
    for record in records:
        if not is_usable(record):
            reasons.setdefault(_reason(record), []).append(record.repeat)
    return tuple(
        Problem(
            workload=shape.workload,
            shape=shape_text(shape),
            strategy=name,
            repeats=tuple(repeats),
            status=status,
            type=type_,
            stage=stage,
            message=message,
        )
        for (status, type_, stage, message), repeats in reasons.items()
    )


def _reason(record: Record) -> tuple[RowStatus, str, str, str]:
    if record.error is not None:
        return record.status, record.error.type, record.error.stage, record.error.message
    if record.status == "ok":
        return (
            "failed",
            "no-figure",
            "report",
            "the status is ok, but batch size or median step time is missing or not positive",
        )
    return record.status, "unknown", "unknown", record.plausibility or "no reason recorded"
