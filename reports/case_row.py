"""From the records of one case to its row: figures of its usable repeats, and what became of the others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from harness.records.facts.resharding import Resharding
from harness.records.facts.robustness import Aggregated, Evaluation
from harness.records.record import Record
from reports.aggregate import (
    between_hosts_bytes,
    estimate_of,
    mean_matrix,
    mean_of,
    predicted_step_s,
    time_split_of,
    timed_span,
)
from reports.marks import mark_of
from reports.rows import LoopResharding, Mean, PassRow, Problem, Row, RowStatus, RuleUse
from reports.shapes import ComparedShape, shape_text
from reports.statistics import Ratio


def is_usable(record: Record) -> bool:
    """Whether a repeat has a rate that may be compared."""
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
    rates = rates_of(usable)
    payload = mean_of([r.payload_bytes_per_step for r in usable])
    tcp = mean_of([r.tcp_bytes_per_step for r in usable])
    steps = [r.step_s for r in usable if r.step_s]
    waits = [r.input_s for r in usable if r.input_s]
    gpu_uses = [r.gpus for r in usable if r.gpus]
    timed = [span for r in usable if r.loss and (span := timed_span(r))]
    return Row(
        strategy=name,
        class_=records[0].strategy_class,
        status=_status(records, usable),
        rank=None,
        is_baseline=False,
        n=len(rates),
        n_repeats=len(records),
        rate=estimate_of(rates),
        window_rate=estimate_of([r.examples_per_s for r in usable]),
        ratio=against,
        p50_s=estimate_of([s.p50 for s in steps]),
        p90_s=estimate_of([s.p90 for s in steps]),
        p99_s=estimate_of([s.p99 for s in steps]),
        payload_bytes=payload,
        payload_is_bound=any(r.payload_is_bound for r in usable),
        tcp_bytes=tcp,
        interface_bytes=mean_of([r.interface_bytes_per_step for r in usable]),
        between_hosts_bytes=mean_of([between_hosts_bytes(r) for r in usable]),
        resent_bytes=mean_of([r.resent_bytes_per_step for r in usable]),
        tcp_over_payload=tcp.value / payload.value if tcp and payload and payload.value > 0 else None,
        exposed_comm_s=mean_of([r.exposed_comm_s for r in usable]),
        input_s=mean_of([wait.mean for wait in waits]),
        input_share=mean_of([wait.share for wait in waits]),
        input_bound=any(wait.bound for wait in waits),
        host_bound=any(r.traced_step.host_bound for r in usable if r.traced_step),
        time_split=time_split_of(usable),
        predicted_step_s=mean_of([predicted_step_s(r) for r in usable]),
        step_over_predicted=mean_of(
            [r.step_s.p50 / s for r in usable if r.step_s and r.step_s.p50 and (s := predicted_step_s(r))]
        ),
        codec_s=mean_of([r.codec_s for r in usable]),
        transform_s=mean_of([r.transform_s for r in usable]),
        peak_rss_bytes=max(
            (b for r in usable for b in r.peak_rss_bytes or () if b is not None), default=None
        ),
        resharding=_resharding([r.resharding for r in usable if r.resharding]),
        rule=_rule([r.aggregation for r in records if r.aggregation]),
        metrics=_metrics([r.evaluation for r in usable if r.evaluation]),
        metric_step=mean_of([r.evaluation.step for r in usable if r.evaluation]),
        cpu_s=mean_of([sum(r.cpu_s_per_step) for r in usable if r.cpu_s_per_step]),
        package_j=mean_of([r.energy.package_j_per_step for r in usable if r.energy]),
        gpu_j=mean_of([gpus.joules_per_step for gpus in gpu_uses]),
        gpu_busy=mean_of([gpus.busy for gpus in gpu_uses]),
        gpu_own_bytes=max((n for gpus in gpu_uses if (n := gpus.own_bytes)), default=None),
        gpu_peak_bytes=max((n for gpus in gpu_uses if (n := gpus.peak_bytes)), default=None),
        gpu_link_bytes=mean_of([gpus.link_bytes_per_step for gpus in gpu_uses]),
        gpu_pcie_bytes=mean_of([gpus.pcie_bytes_per_step for gpus in gpu_uses]),
        price_per_hour=records[0].price_per_hour,
        cost_per_million=mean_of([r.cost_per_million_examples for r in usable]),
        warmup_steps=mean_of([r.warmup_steps for r in usable]),
        loss_first=mean_of([r.loss[0] for r in usable if r.loss]),
        loss_last=mean_of([r.loss[-1] for r in usable if r.loss]),
        loss_first_step=mean_of([first for first, _ in timed]),
        loss_last_step=mean_of([last for _, last in timed]),
        mark=mark_of(records),
        tcp_matrix=mean_matrix([r.tcp_matrix for r in usable if r.tcp_matrix]),
        steps=(),
        problems=_problems(name, records, shape),
        passes=_passes(usable),
        notes=tuple(dict.fromkeys(note for r in records for note in (*r.warnings, *r.notes))),
    )


def _resharding(found: Sequence[Resharding]) -> LoopResharding | None:
    reshards, shards, unshards, sent_bytes = (
        mean_of([getattr(each, name) for each in found])
        for name in ("reshards", "shards", "unshards", "sent_bytes")
    )
    if reshards is None or shards is None or unshards is None or sent_bytes is None:
        return None
    return LoopResharding(
        reshards=reshards,
        shards=shards,
        unshards=unshards,
        sent_bytes=sent_bytes,
        whole_bytes=max(each.whole_bytes for each in found),
        kept_bytes=max(each.kept_bytes for each in found),
    )


def _rule(found: Sequence[Aggregated]) -> RuleUse | None:
    if not found:
        return None
    first = found[0]
    n_steps = sum(each.n_steps or 0 for each in found)
    chosen = [each.chosen for each in found if each.chosen is not None]
    not_finite = [sum(each.not_finite) for each in found if each.not_finite is not None]
    return RuleUse(
        rule=first.rule,
        n=first.n,
        f=first.f,
        n_faulty=first.n_faulty,
        selects=first.selects,
        rule_s=mean_of([each.rule_s for each in found]),
        over_mean=mean_of([each.rule_s / each.mean_s for each in found if each.rule_s and each.mean_s]),
        not_finite=sum(not_finite) / n_steps if n_steps and not_finite else None,
        chosen=tuple(sum(column) / n_steps for column in zip(*chosen, strict=False))
        if n_steps and chosen
        else None,
    )


def _passes(usable: Sequence[Record]) -> tuple[PassRow, ...]:
    """Passes of the first repeat that tells of them, timed over all repeats that had the same."""
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
    """Repeats without a usable result, those with the same reason together."""
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
