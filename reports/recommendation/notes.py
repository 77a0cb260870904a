"""Notes beside a comparison: doubts about its figures, and how they were measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from harness.records.comparison import PairedRatios, trimmed_mean
from harness.records.conditions import AS_WRITTEN
from harness.records.costs import LONG_PREPARATION_S, ObserverEffect
from harness.records.record import CORES_SHARED, RETRANSMITS, WARMUP_UNSETTLED, Record
from reports.contrasts import Contrasts
from reports.quantities import digits, evidence, link_rate, times
from reports.recommendation.candidates import can_win
from reports.recommendation.machine_notes import setting_notes, stability_notes, unknown_gpu_notes
from reports.recommendation.phrases import NOTES, by_gravity, note
from reports.rows.report import Note
from reports.rows.row import Row
from reports.shapes import ComparedShape
from reports.statistics import Mean, paired_ratio

_UNSURE = 0.005
"""Share of a step's bytes that may be in flight when the counters are read."""
_MOST_BYTES_APART = 0.10
"""Share by which a layer of bytes may exceed the one within it, before a note says so."""
_MOST_RATE_LOST = 0.10
"""Share of the median step's rate that slow steps may cost, before a note says so."""
_ROUNDING = 1.0 + 1e-9
# What the transport itself sends in a step (headers, control messages); a tiny model's payload drowns in it.
ALARM_FLOOR_BYTES = 20_000
_KINDS_OF_RECORD_NOTES = {
    CORES_SHARED: "cores-shared",
    WARMUP_UNSETTLED: "warmup-unsettled",
    RETRANSMITS: "retransmits",
}
"""Start of a record's own note → its kind."""


def notes_of(
    shape: ComparedShape,
    rows: Sequence[Row],
    cases: Mapping[str, list[Record]],
    baseline_notes: Sequence[str],
    contrasts: Contrasts,
) -> tuple[Note, ...]:
    """Notes beside a comparison, the gravest first."""
    return by_gravity(
        [
            *warning_notes(cases),
            *(note("baseline-absent", text=text) for text in baseline_notes),
            *separability_notes(cases),
            *mark_notes(shape.workload, rows),
            *capture_notes(cases),
            *batch_notes(shape, cases),
            *link_notes(cases),
            *computation_notes(cases),
            *preparation_notes(cases),
            *twin_notes(rows, cases),
            *input_notes(rows, cases),
            *observer_notes(cases),
            *until_notes(rows, cases),
            *stability_notes(cases),
            *unknown_gpu_notes(cases),
            *setting_notes(cases),
            *row_notes(rows),
            *slow_step_notes(rows, contrasts),
            *record_notes(cases),
        ]
    )


def batch_notes(shape: ComparedShape, cases: Mapping[str, list[Record]]) -> list[Note]:
    """Strategies with another batch than the shape's."""
    if not shape.batch_size:
        return []
    by_batch: dict[int, list[str]] = {}
    for name, records in cases.items():
        batch = next((r.batch_size for r in records if r.batch_size), None)
        if batch not in (None, shape.batch_size):
            by_batch.setdefault(batch, []).append(name)
    return [
        note("batch-differs", *names, batch=batch, usual=shape.batch_size)
        for batch, names in by_batch.items()
    ]


def link_notes(cases: Mapping[str, list[Record]]) -> list[Note]:
    """Limits of links that are not the same for all workers."""
    known = (r.link.workers for records in cases.values() for r in records if r.link and r.link.workers)
    requested = {tuple(worker.requested_mbit for worker in workers) for workers in known}
    return [
        note("links-differ", links=", ".join(f"worker {i} {link_rate(mbit)}" for i, mbit in enumerate(rates)))
        for rates in sorted(requested, key=str)
        if len(set(rates)) > 1
    ]


def until_notes(rows: Sequence[Row], cases: Mapping[str, list[Record]]) -> list[Note]:
    """Notes on repeats that continued until their intervals were narrow enough."""
    methods = (r.method for records in cases.values() for r in records)
    wanted = next((method.until_ci for method in methods if method and method.until_ci), None)
    if wanted is None:
        return []
    within = f"±{100 * wanted:.3g} %"
    widths = {row.strategy: _width(row) for row in rows if not row.is_baseline}
    wide = {name: width for name, width in widths.items() if width is None or width > wanted * _ROUNDING}
    if not wide:
        return [note("ratios-narrow", within=within)]
    ratios = (
        f"{name} {'no CI' if width is None else f'±{100 * width:.2g} %'}" for name, width in wide.items()
    )
    return [note("ratios-wide", *wide, within=within, ratios=", ".join(ratios))]


def _width(row: Row) -> float | None:
    if row.ratio is None or row.ratio.interval is None or not row.ratio.value:
        return None
    return row.ratio.interval.high / row.ratio.value - 1.0


def row_notes(rows: Sequence[Row]) -> Iterator[Note]:
    """Reasons to doubt the figures of rows."""
    for row in rows:
        if row.mark.blind:
            yield note("check-blind", row.strategy)
        if row.n and row.n < row.n_repeats:
            yield note("repeats-missing", row.strategy, n=row.n, of=row.n_repeats)
        below = row.tcp_bytes and row.payload_bytes and row.tcp_bytes.value < row.payload_bytes.value
        if not (row.payload_is_bound and below):
            yield from _apart(row.strategy, ("TCP", row.tcp_bytes), ("predicted payload", row.payload_bytes))
        yield from _apart(row.strategy, ("interface", row.interface_bytes), ("TCP", row.tcp_bytes))
    if waiting := [row.strategy for row in rows if row.host_bound]:
        yield note("host-bound", *waiting)
    if bounded := [row.strategy for row in rows if row.payload_is_bound]:
        yield note("payload-bound", *bounded)


def slow_step_notes(rows: Sequence[Row], contrasts: Contrasts) -> list[Note]:
    """Note on slow steps; a warning if they move a ratio of the headline out of its interval.

    Args:
        rows: all rows of one comparison, in falling order of standing.
    """
    lost = {row.strategy: share for row in rows if (share := _rate_lost(row)) > _MOST_RATE_LOST}
    if not lost:
        return []
    shares = ", ".join(f"{name} {digits(100 * share, significant=2)} %" for name, share in lost.items())
    candidates = [row for row in rows if can_win(row)]
    compared = [row for row in candidates[1:] if row is candidates[1] or row.is_baseline]
    ratios = [
        f"{times(by_windows)} {row.strategy}"
        for row in compared
        if {candidates[0].strategy, row.strategy} & set(lost)
        and (by_windows := _ratio_outside(candidates[0], row, contrasts)) is not None
    ]
    if not ratios:
        return [note("slow-steps", *lost, shares=shares)]
    over_windows = f"{candidates[0].strategy} is {', '.join(ratios)}"
    return [note("averages-differ", *lost, shares=shares, ratios=over_windows)]


def _ratio_outside(row: Row, other: Row, contrasts: Contrasts) -> float | None:
    """Ratio of rates over whole windows; None if inside the interval of the ratio of median rates."""
    ratio = contrasts.of(row.strategy, other.strategy)
    if not (ratio and ratio.interval and row.window_rate and other.window_rate and other.window_rate.value):
        return None
    by_windows = row.window_rate.value / other.window_rate.value
    return None if ratio.interval.contains(by_windows) else by_windows


def _rate_lost(row: Row) -> float:
    """Share of the median step's rate that slow steps cost."""
    if not (row.rate and row.window_rate and row.rate.value):
        return 0.0
    return 1 - row.window_rate.value / row.rate.value


def warning_notes(cases: Mapping[str, list[Record]]) -> list[Note]:
    """Warnings of the records themselves."""
    return [
        note("advice", name, text=text)
        for name, records in cases.items()
        for text in dict.fromkeys(text for record in records for text in record.warnings)
    ]


def mark_notes(workload: str, rows: Sequence[Row]) -> list[Note]:
    """Strategies that are not equivalent, or beyond their compressor's bound."""
    named = {
        kind: [r.strategy for r in rows if r.mark.kind == kind] for kind in ("not-equivalent", "beyond-bound")
    }
    return [note(kind, *names, workload=workload, first=names[0]) for kind, names in named.items() if names]


def separability_notes(cases: Mapping[str, list[Record]]) -> list[Note]:
    """Steps whose shards add up to another gradient than the whole batch, or may do so."""
    named: dict[tuple[bool | None, str], list[str]] = {}
    for name, records in cases.items():
        checks = [r.equivalence for r in records if r.equivalence is not None and not r.control]
        for separable, text in dict.fromkeys((check.separable, check.separability) for check in checks):
            if text is not None and separable is not True:
                named.setdefault((separable, text), []).append(name)
    return [
        note("not-separable" if separable is False else "separability-unknown", *names, text=text)
        for (separable, text), names in named.items()
    ]


def capture_notes(cases: Mapping[str, list[Record]]) -> list[Note]:
    """Captured steps that differ from the workload's own, or may do so."""
    checks = (r.equivalence for records in cases.values() for r in records if r.equivalence is not None)
    verdicts = dict.fromkeys((check.captured, check.capture) for check in checks)
    return [
        note("capture-wrong" if captured is False else "capture-unknown", text=text)
        for captured, text in verdicts
        if text is not None and captured is not True
    ]


def record_notes(cases: Mapping[str, list[Record]]) -> list[Note]:
    """Notes of the records themselves: first those of some strategies, then those that all share."""
    speaking = {name: noted for name, records in cases.items() if (noted := [r for r in records if r.notes])}
    counts: dict[str, dict[str, int]] = {}
    for name, records in speaking.items():
        for text in (text for record in records for text in dict.fromkeys(record.notes)):
            by_name = counts.setdefault(text, {})
            by_name[name] = by_name.get(name, 0) + 1
    own, shared = [], []
    for text, by_name in counts.items():
        starts = (kind for start, kind in _KINDS_OF_RECORD_NOTES.items() if text.startswith(start))
        kind = next(starts, "record")
        if len(speaking) > 1 and all(by_name.get(name) == len(noted) for name, noted in speaking.items()):
            shared.append(note(kind, text=text))
            continue
        by_count: dict[str, list[str]] = {}
        for name, n in by_name.items():
            n_all = len(cases[name])
            by_count.setdefault(f" ({n} of {n_all} repeats)" if n < n_all else "", []).append(name)
        own += [
            note(kind, *names, text=f"{', '.join(names)}: {text}{part}") for part, names in by_count.items()
        ]
    return own + shared


def _apart(strategy: str, outer: tuple[str, Mean | None], inner: tuple[str, Mean | None]) -> Iterator[Note]:
    """Alarm where a layer of bytes is smaller than the one within it, or much larger."""
    (outer_name, more), (inner_name, less) = outer, inner
    if more is None or less is None or (more.value == 0 and less.value == 0):
        return
    names = {"outer": outer_name, "inner": inner_name}
    if more.value < less.value * (1 - _UNSURE):
        yield note("bytes-below", strategy, **names)
    elif more.value > less.value * (1 + _MOST_BYTES_APART) + ALARM_FLOOR_BYTES:
        if less.value:
            most = f"{100 * _MOST_BYTES_APART:g}"
            yield note("bytes-apart", strategy, **names, times=times(more.value / less.value), most=most)
        else:
            yield note("bytes-unexpected", strategy, **names)


def twin_notes(rows: Sequence[Row], cases: Mapping[str, list[Record]]) -> list[Note]:
    """Ratios between two runs of the baseline under different names."""
    notes = []
    for row in rows:
        if not cases[row.strategy][0].is_twin or row.ratio is None:
            continue
        ratio = f"{times(row.ratio.value)} ({evidence(row.ratio)})"
        differs = row.ratio.interval is not None and not row.ratio.interval.contains(1.0)
        notes.append(note("self-differs" if differs else "self", row.strategy, ratio=ratio))
    return notes


def preparation_notes(cases: Mapping[str, list[Record]]) -> list[Note]:
    """Stages before the first timed step, of the case that took longest."""
    longest = max(
        (r for records in cases.values() for r in records if r.preparation is not None),
        key=lambda r: r.preparation.total_s if r.preparation is not None else 0.0,
        default=None,
    )
    preparation = None if longest is None else longest.preparation
    if longest is None or preparation is None or preparation.total_s < LONG_PREPARATION_S:
        return []
    stages = {
        "capture": preparation.capture_s,
        "references": preparation.reference_s,
        "start": preparation.start_s,
        "check": preparation.check_s,
        "warm-up": preparation.warmup_s,
    }
    parts = ", ".join(f"{name} {digits(s)} s" for name, s in stages.items() if s is not None)
    total, limit = digits(preparation.total_s), digits(preparation.limit_s)
    return [note("preparation", longest.strategy, total=total, stages=parts, limit=limit)]


def computation_notes(cases: Mapping[str, list[Record]]) -> list[Note]:
    """Notes on precision, XLA and TF32 that differ from the workload's own."""
    methods = {record.method for records in cases.values() for record in records if record.method}
    devices = {record.device for records in cases.values() for record in records}
    precisions = sorted({method.precision for method in methods} - {AS_WRITTEN})
    return [
        *([note("tpu-emulated")] if "tpu-emulated" in devices else []),
        *(note(precision) for precision in precisions if precision in NOTES),
        *([note("xla")] if any(method.xla for method in methods) else []),
        *([note("tf32")] if any(method.tf32 for method in methods) else []),
        *_sparse_row_notes(cases),
    ]


def _sparse_row_notes(cases: Mapping[str, list[Record]]) -> list[Note]:
    by_treatment: dict[str | None, list[str]] = {}
    for name, records in cases.items():
        for treatment in {record.method.sparse_duplicates for record in records if record.method}:
            by_treatment.setdefault(treatment, []).append(name)
    separate, summed = by_treatment.get("kept"), by_treatment.get("merged")
    if not separate or not summed:
        return []
    return [note("rows-summed", *separate, summed=", ".join(summed), separate=", ".join(separate))]


def input_notes(rows: Sequence[Row], cases: Mapping[str, list[Record]]) -> list[Note]:
    """Source of the batches, and cases that wait for it."""
    methods = (r.method for r in chain(*cases.values()))
    if not any(method.input == "pipeline" for method in methods if method):
        return []
    bound = [(row.strategy, row.input_share.value) for row in rows if row.input_bound and row.input_share]
    if not bound:
        return [note("pipeline")]
    shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in bound)
    return [note("pipeline"), note("input-bound", *(name for name, _ in bound), shares=shares)]


def observer_notes(cases: Mapping[str, list[Record]]) -> list[Note]:
    """Change of the step time by measuring it, if that was measured."""
    changes = {
        name: _effect_of_measuring(pairs)
        for name, records in cases.items()
        if (pairs := [logs for r in records if r.observer and (logs := _log_ratios(r.observer))])
    }
    missing = [
        note("observer-unknown", name, text=record.observer.why_none)
        for name, records in cases.items()
        for record in records
        if record.observer and record.observer.why_none
    ]
    texts = ", ".join(f"{name} {change}" for name, change in changes.items())
    return [*([note("observer", *changes, changes=texts)] if changes else []), *dict.fromkeys(missing)]


def _log_ratios(effect: ObserverEffect) -> list[float]:
    """Logarithms of the step with instruments ÷ that without, of each pair of windows."""
    pairs = zip(effect.with_s, effect.without_s, strict=True)
    return [math.log(a / b) for a, b in pairs if a > 0.0 and b > 0.0 and 0.0 < a / b < math.inf]


def _effect_of_measuring(repeats: Sequence[Sequence[float]]) -> str:
    ratio = paired_ratio(PairedRatios(logs=tuple(map(trimmed_mean, repeats))))
    text = f"{_percent(ratio.value)} %"
    if ratio.interval is None:
        return text
    return f"{text} ({_percent(ratio.interval.low)} to {_percent(ratio.interval.high)} %)"


def _percent(ratio: float) -> str:
    share = 100 * (ratio - 1)
    return f"{'-' if share < 0 else '+'}{digits(abs(share), significant=2)}"
