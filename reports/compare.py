"""From stored records to rows: group by workload and cluster shape, set against the baseline, rank, judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

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
from reports.contrasts import Contrasts
from reports.figures.shapes import BASELINE, ComparedShape, shape_text, shapes_of, strategy_names
from reports.load import MAX_SHOWN_REPEATS, Run
from reports.marks import mark_of
from reports.measuring_notes import observer_notes, setting_notes, stability_notes, twin_notes
from reports.notes import (
    batch_notes,
    link_notes,
    record_notes,
    row_notes,
    separability_notes,
    small_payload_notes,
    until_notes,
    warning_notes,
)
from reports.origins import origin_of
from reports.recommendation import ranks, verdict
from reports.rows import Comparison, LeftOut, Problem, Report, Row, RowStatus, StepSeries
from reports.statistics import Ratio

StepReader = Callable[[Run, Record], StepSeries | LeftOut]


def build(runs: Sequence[Run], *, read_steps: StepReader | None = None) -> Report:
    """Make all rows of a report.

    Args:
        runs: loaded run folders; strategies are compared within a run only, since only there are repeats
            interleaved.
        read_steps: reader of per-step times; None leaves them out.
    """
    comparisons: list[Comparison] = []
    left_out: list[LeftOut] = []
    for run in runs:
        left_out.extend(replace(item, where=f"{run.name}: {item.where}") for item in run.left_out)
        for shape, cases in shapes_of(run).items():
            comparisons.append(_comparison(run, shape, cases, read_steps, left_out))
    names = ", ".join(dict.fromkeys(str(run.experiment.get("name") or run.name) for run in runs))
    problems = tuple(problem for item in comparisons for row in item.rows for problem in row.problems)
    return Report(
        title=names or "empty report",
        comparisons=tuple(comparisons),
        problems=tuple(dict.fromkeys(problems)),
        left_out=tuple(left_out),
        origins=tuple(origin_of(run) for run in runs),
    )


def _comparison(
    run: Run,
    shape: ComparedShape,
    cases: Mapping[str, list[Record]],
    read_steps: StepReader | None,
    left_out: list[LeftOut],
) -> Comparison:
    """Rows, ranks, verdict and notes of one shape."""
    usable = {name: [r for r in records if _usable(r)] for name, records in cases.items()}
    rates = {
        name: [rate for r in records if (rate := r.median_examples_per_s)] for name, records in usable.items()
    }
    contrasts = Contrasts(usable)
    notes = warning_notes(cases)
    baseline = _baseline(run, cases, rates, notes)
    rows = []
    for name, records in cases.items():
        against = None if baseline in (None, name) else contrasts.of(name, baseline)
        row = _row(name, records, usable[name], shape, against)
        steps = _steps(run, usable[name], read_steps, left_out)
        rows.append(replace(row, steps=steps, is_baseline=name == baseline))
    rows.sort(key=lambda row: (row.status != "ok", -contrasts.standing(row.strategy, baseline), row.strategy))
    places = ranks(rows, contrasts)
    rows = [replace(row, rank=places.get(row.strategy)) for row in rows]
    notes.extend(separability_notes(cases))
    notes.extend(batch_notes(shape, cases))
    notes.extend(link_notes(cases))
    notes.extend(twin_notes(rows, cases))
    notes.extend(observer_notes(cases))
    notes.extend(until_notes(rows, cases))
    notes.extend(stability_notes(cases))
    notes.extend(setting_notes(cases))
    notes.extend(note for row in rows for note in row_notes(row))
    notes.extend(small_payload_notes(rows))
    notes.extend(record_notes(cases))
    return Comparison(
        run=run.name,
        workload=shape.workload,
        shape=shape_text(shape),
        provider=shape.provider,
        device=shape.device,
        workers=shape.workers,
        replicas=shape.replicas,
        batch_size=shape.batch_size or None,
        link_requested_mbit=shape.link_mbit or None,
        link_measured_mbit=mean_of(
            [r.link.measured_mbit for records in usable.values() for r in records if r.link]
        ),
        baseline=baseline,
        rows=tuple(rows),
        verdict=verdict(rows, contrasts),
        notes=tuple(notes),
    )


def _usable(record: Record) -> bool:
    return record.status == "ok" and record.median_examples_per_s is not None


def _baseline(
    run: Run, cases: Mapping[str, list[Record]], rates: Mapping[str, Sequence[float]], notes: list[str]
) -> str | None:
    """The strategy that ratios refer to; another one, with a note, when the chosen one has no figure."""
    section = run.experiment.get("compare")
    chosen = section.get("baseline") if isinstance(section, Mapping) else None
    wanted = chosen if isinstance(chosen, str) else BASELINE
    matches = [
        name for name, records in cases.items() if wanted in strategy_names(records[0]) and rates[name]
    ]
    if matches:
        return matches[0]
    present = [name for name in cases if rates[name]]
    meaningful = [name for name in present if cases[name][0].strategy_class != "control"] or present
    if not meaningful:
        notes.append(f"Baseline {wanted} has no figure here, and no other strategy has one: no ratios.")
        return None
    notes.append(
        f"Baseline {wanted} has no figure here; ratios refer to {meaningful[0]}, the first that has one."
    )
    return meaningful[0]


def _row(
    name: str,
    records: Sequence[Record],
    usable: Sequence[Record],
    shape: ComparedShape,
    against: Ratio | None,
) -> Row:
    """One strategy's figures over its usable repeats."""
    rates = [rate for r in usable if (rate := r.median_examples_per_s)]
    payload = mean_of([r.payload_bytes_per_step for r in usable])
    tcp = mean_of([r.tcp_bytes_per_step for r in usable])
    steps = [r.step_s for r in usable if r.step_s]
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
        cpu_s=mean_of([sum(r.cpu_s_per_step) for r in usable if r.cpu_s_per_step]),
        package_j=mean_of([r.energy.package_j_per_step for r in usable if r.energy]),
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
        notes=tuple(dict.fromkeys(note for r in records for note in (*r.warnings, *r.notes))),
    )


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
        if not _usable(record):
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
            "the record says ok but holds no median step time or no batch size",
        )
    return record.status, "unknown", "unknown", record.plausibility or "the record gives no reason"


def _steps(
    run: Run, usable: Sequence[Record], read_steps: StepReader | None, left_out: list[LeftOut]
) -> tuple[StepSeries, ...]:
    if read_steps is None:
        return ()
    all_steps = []
    ordered = sorted(usable, key=lambda r: r.repeat)
    # More lines than a person can compare are not drawn, and so not read.
    for record in ordered[:: -(-len(ordered) // MAX_SHOWN_REPEATS) or 1]:
        steps = read_steps(run, record)
        if isinstance(steps, LeftOut):
            item = replace(steps, where=f"{run.name}: {steps.where}")
            # `single` belongs to several shapes; its missing file is said once.
            if all(item.where != other.where for other in left_out):
                left_out.append(item)
        else:
            all_steps.append(steps)
    return tuple(all_steps)
