"""From the records of one case to its row: figures of its usable repeats, and what became of the others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from harness.records.outcome import Evaluation
from harness.records.record import Record
from reports.marks import mark_of
from reports.rows.evidence import PassRow, Problem, RowStatus
from reports.rows.figure import combined
from reports.rows.repeat import is_traced
from reports.rows.row import LoopResharding, Row, RuleUse, TimeSplit
from reports.shapes import ComparedShape, shape_text
from reports.statistics import Mean, Ratio, mean_of


def is_usable(record: Record) -> bool:
    """True if a repeat has a rate that may be compared."""
    return record.status == "ok" and bool(rates_of([record]))


def rates_of(records: Iterable[Record]) -> list[float]:
    """Examples per second of the median step of each record that has such a rate."""
    rates = (record.median_examples_per_s for record in records)
    return [rate for rate in rates if rate is not None and 0.0 < rate < math.inf]


def case_row(
    name: str,
    records: Sequence[Record],
    usable: Sequence[Record],
    shape: ComparedShape,
    against: Ratio | None,
) -> Row:
    """One strategy's figures over its usable repeats; steps, rank and baseline are for the comparison to add.

    Args:
        against: the ratio to the baseline; None where there is none.
    """
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
        ratio=against,
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
    """Mean of each cell over the repeats whose matrix is as large as the first one."""
    size = next(map(len, matrices), 0)
    same_size = [m for m in matrices if len(m) == size]
    if not same_size:
        return None

    def cell(i: int, j: int) -> float | None:
        mean = mean_of([m[i][j] for m in same_size])
        return mean.value if mean else None

    return tuple(tuple(cell(i, j) for j in range(size)) for i in range(size))


def _passes(usable: Sequence[Record]) -> tuple[PassRow, ...]:
    told = [record for record in usable if record.passes]
    first = told[0].passes if told else None
    if not first:
        return ()
    names = [each.name for each in first]
    alike = [passes for r in told if (passes := r.passes) and [each.name for each in passes] == names]
    rows: list[PassRow] = []
    before = told[0].nodes_before
    for i, each in enumerate(first):
        taken = mean_of([passes[i].seconds for passes in alike])
        if taken is not None:
            added = None if before is None else each.nodes - before
            rows.append(PassRow(name=each.name, nodes=each.nodes, added=added, seconds=taken))
        before = each.nodes
    return tuple(rows)


def _metrics(found: Sequence[Evaluation]) -> Mapping[str, Mean]:
    names = dict.fromkeys(name for each in found for name in each.metrics)
    means = {name: mean_of([each.metrics.get(name) for each in found]) for name in names}
    return {name: mean for name, mean in means.items() if mean is not None}


def _status(records: Sequence[Record], usable: Sequence[Record]) -> RowStatus:
    """One word for all repeats: an implausible one taints its case; a failed one only lowers n."""
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
            "the record says ok but holds no batch size, no median step time, or one of next to nothing",
        )
    return record.status, "unknown", "unknown", record.plausibility or "the record gives no reason"
