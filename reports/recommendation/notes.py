"""Notes beside a comparison: doubts about its figures, and how they were measured."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from harness.records.circumstances import AS_WRITTEN
from harness.records.comparison import PairedRatios, trimmed_mean
from harness.records.costs import LONG_PREPARATION_S, ObserverEffect
from harness.records.record import Record
from reports.quantities import digits, limits, link_rate, times
from reports.recommendation.machine_notes import setting_notes, stability_notes, unknown_gpu_notes
from reports.rows.row import Row
from reports.shapes import ComparedShape
from reports.statistics import Mean, paired_ratio

_WARNING = "Warning, for"
_UNSURE = 0.005
"""Share of a step's bytes that may be in flight when the counters are read."""
_MOST_BYTES_APART = 0.10
"""Share by which a layer of bytes may exceed the one within it, before a note says so."""
_MOST_RATE_LOST = 0.10
"""Share of the median step's rate that slow steps may cost, before a note says so."""
_ROUNDING = 1.0 + 1e-9
# What the transport itself sends in a step (headers, control messages); a tiny model's payload drowns in it.
ALARM_FLOOR_BYTES = 20_000
# What begins in another way begins with a name (`sync_batch_norm: …`) or with code.
_BEGINS_WITH_WORD = re.compile(r"[a-z-]+(?:[\s,]|$)")

_OTHER_BATCH = (
    "Strategy {name} ran with a batch of {batch}, the others with {usual}; rates compare, step times do not."
)
_UNEQUAL_LINKS = "Links are not equal: {links}."
_RATIOS_KNOWN = "Repeats went on until each ratio was known within {within}."
_RATIOS_WIDE = "Ratios were to be known within {within}; these are not: {ratios}."
_FEWER_REPEATS = "For {name}: {n} of {of} repeats count; the others are listed under failures."
_PAYLOAD_BOUND = (
    "For {name}: its payload is an upper bound, since the rows of sparse gradients are counted only in the "
    "step."
)
_SLOW_STEPS = (
    "For {name}: over the whole window the rate is {share} % below that of the median step; a few slow steps "
    "cost that much."
)
_BELOW = "For {name}: {outer} bytes are below {inner} bytes; one of the two must be wrong."
_APART = "For {name}: {outer} bytes are {times} the {inner} bytes, more than {most} % apart."
_NO_INNER = "For {name}: {outer} bytes are not zero, unlike the {inner} bytes."
_TWIN = "{name} is the baseline a second time; its ratio is {ratio}."
_TWIN_DIFFERS = "A strategy differs from itself in these repeats: doubt other differences that are no larger."
_PREPARATION = (
    "First timed step after {total} s at most ({name}: {stages}); capture and references are made once for "
    "all repeats, within {limit} s."
)
_TPU_EMULATED = (
    "Cores of TPUs are emulated: what is computed, resharded and sent is real, but rates are those of this "
    "machine and rank nothing for TPUs."
)
_MIXED = {
    "bfloat16": "Layers compute in bfloat16 by Keras's mixed policy; variables, their gradients and updates "
    "are in float32.",
    "float16": "Layers compute in float16 by Keras's mixed policy, with a loss scale; variables, their "
    "gradients and updates are in float32.",
}
"""Precision of a mixed policy → phrase."""
_XLA = "XLA compiles what each worker computes; what workers send, and calls of Python, stay outside."
_TF32 = (
    "Matrix products and convolutions of float32 may round to TF32 in timed steps, as TensorFlow does on "
    "GPUs by default; the check against one device is made without."
)
_SPARSE_ROWS = (
    "Rows of sparse gradients with equal ids are summed before the update in {summed}, and not in {kept}: "
    "with an optimizer that squares or clips rows, these take different steps."
)
_PIPELINE = (
    "Steps took batches of the workload's own tf.data pipeline, a shard for each worker, as it made them."
)
_INPUT_BOUND = (
    "Input-bound: of their steps' time these wait for input: {shares}. That hides what strategies differ in; "
    "compare them by --input staged, or make the dataset faster."
)
_MEASURING = "Measuring changes the mean step {changes}."
_MEASURING_UNKNOWN = "{name}: what measuring takes is not known: {why}."


def notes_of(
    shape: ComparedShape,
    rows: Sequence[Row],
    cases: Mapping[str, list[Record]],
    baseline_notes: Sequence[str],
) -> list[str]:
    """Notes beside a comparison: warnings first, and last what records say themselves."""
    notes = [
        *warning_notes(cases),
        *baseline_notes,
        *separability_notes(cases),
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
        *(note for row in rows for note in row_notes(row)),
    ]
    return [*sorted(notes, key=lambda note: not is_warning(note)), *record_notes(cases)]


def batch_notes(shape: ComparedShape, cases: Mapping[str, list[Record]]) -> list[str]:
    """Strategies that ran with another batch than the shape's; none where nobody knows that."""
    if not shape.batch_size:
        return []
    others = {
        name: batch
        for name, records in cases.items()
        # A case that failed before it was planned has none.
        if (batch := next((r.batch_size for r in records if r.batch_size), None))
        not in (None, shape.batch_size)
    }
    return [
        _OTHER_BATCH.format(name=name, batch=batch, usual=shape.batch_size) for name, batch in others.items()
    ]


def link_notes(cases: Mapping[str, list[Record]]) -> list[str]:
    """Limits of links that are not the same for all workers."""
    known = (r.link.workers for records in cases.values() for r in records if r.link and r.link.workers)
    asked = {tuple(worker.requested_mbit for worker in workers) for workers in known}
    return [
        _UNEQUAL_LINKS.format(links=", ".join(_limit(worker, mbit) for worker, mbit in enumerate(rates)))
        for rates in sorted(asked, key=str)
        if len(set(rates)) > 1
    ]


def _limit(worker: int, mbit: float | None) -> str:
    return f"worker {worker} has {link_rate(mbit)}"


def until_notes(rows: Sequence[Row], cases: Mapping[str, list[Record]]) -> list[str]:
    """Notes on repeats that went on until intervals were as narrow as asked for."""
    methods = (r.method for records in cases.values() for r in records)
    wanted = next((method.until_ci for method in methods if method and method.until_ci), None)
    if wanted is None:
        return []
    within = f"±{100 * wanted:.3g} %"
    widths = {row.strategy: _width(row) for row in rows if not row.is_baseline}
    wide = {name: width for name, width in widths.items() if width is None or width > wanted * _ROUNDING}
    if not wide:
        return [_RATIOS_KNOWN.format(within=within)]
    ratios = (
        f"{name} {'has no interval' if width is None else f'±{100 * width:.2g} %'}"
        for name, width in wide.items()
    )
    return [_RATIOS_WIDE.format(within=within, ratios=", ".join(ratios))]


def _width(row: Row) -> float | None:
    if row.ratio is None or row.ratio.interval is None or not row.ratio.value:
        return None
    return row.ratio.interval.high / row.ratio.value - 1.0


def row_notes(row: Row) -> list[str]:
    """Reasons to doubt a row's figures."""
    notes = []
    if row.mark.blind:
        notes.append(f"For {row.strategy}: {row.mark.explanation[0].lower()}{row.mark.explanation[1:]}")
    if row.n and row.n < row.n_repeats:
        notes.append(_FEWER_REPEATS.format(name=row.strategy, n=row.n, of=row.n_repeats))
    if row.payload_is_bound:
        notes.append(_PAYLOAD_BOUND.format(name=row.strategy))
    below = row.tcp_bytes and row.payload_bytes and row.tcp_bytes.value < row.payload_bytes.value
    if not (row.payload_is_bound and below):
        notes += _apart(row.strategy, ("TCP", row.tcp_bytes), ("predicted payload", row.payload_bytes))
    notes += _apart(row.strategy, ("interface", row.interface_bytes), ("TCP", row.tcp_bytes))
    if row.rate and row.window_rate and row.window_rate.value < row.rate.value * (1 - _MOST_RATE_LOST):
        share = digits(100 * (1 - row.window_rate.value / row.rate.value), significant=2)
        notes.append(_SLOW_STEPS.format(name=row.strategy, share=share))
    return notes


def is_warning(note: str) -> bool:
    """True if a note is one that a reader must not miss."""
    return note.startswith(_WARNING)


def warning_notes(cases: Mapping[str, list[Record]]) -> list[str]:
    """Warnings of records that a case is not what its strategy was chosen for."""
    return [
        f"{_WARNING} {name}: {text}."
        for name, records in cases.items()
        for text in dict.fromkeys(text for record in records for text in record.warnings)
    ]


def separability_notes(cases: Mapping[str, list[Record]]) -> list[str]:
    """Strategies that train on something else than the step does on one device, or may do so."""
    named: dict[tuple[bool | None, str], list[str]] = {}
    for name, records in cases.items():
        checks = [r.equivalence for r in records if r.equivalence is not None and not r.control]
        for separable, text in dict.fromkeys((check.separable, check.separability) for check in checks):
            if text is not None and separable is not True:
                named.setdefault((separable, text), []).append(name)
    return [
        f"{_WARNING if separable is False else 'For'} {', '.join(names)}: {text}."
        for (separable, text), names in named.items()
    ]


def capture_notes(cases: Mapping[str, list[Record]]) -> list[str]:
    """Captured steps that compute something else than the workload's own, or may do so."""
    checks = (r.equivalence for records in cases.values() for r in records if r.equivalence is not None)
    verdicts = dict.fromkeys((check.captured, check.capture) for check in checks)
    return [
        f"{_WARNING} the workload: {text}." if captured is False else f"For the workload: {text}."
        for captured, text in verdicts
        if text is not None and captured is not True
    ]


def record_notes(cases: Mapping[str, list[Record]]) -> list[str]:
    """Notes of the records themselves: first those of one strategy, then those that all share."""
    speaking = {name: said for name, records in cases.items() if (said := [r for r in records if r.notes])}
    counts: dict[str, dict[str, int]] = {}
    for name, records in speaking.items():
        for text in (text for record in records for text in dict.fromkeys(record.notes)):
            by_name = counts.setdefault(text, {})
            by_name[name] = by_name.get(name, 0) + 1
    own, shared = [], []
    for text, by_name in counts.items():
        if len(speaking) > 1 and all(by_name.get(name) == len(said) for name, said in speaking.items()):
            shared.append(_sentence(text))
            continue
        for name, n in by_name.items():
            n_all = len(cases[name])
            part = f" ({n} of {n_all} repeats)" if n < n_all else ""
            own.append(f"For {name}: {text}{part}.")
    return own + shared


def _apart(strategy: str, outer: tuple[str, Mean | None], inner: tuple[str, Mean | None]) -> list[str]:
    """Alarm where a layer of bytes is smaller than the one within it, or much larger."""
    (outer_name, more), (inner_name, less) = outer, inner
    if more is None or less is None or (more.value == 0 and less.value == 0):
        return []
    names = {"name": strategy, "outer": outer_name, "inner": inner_name}
    if more.value < less.value * (1 - _UNSURE):
        return [_BELOW.format(**names)]
    if not _is_far_above(more, less):
        return []
    if not less.value:
        return [_NO_INNER.format(**names)]
    return [_APART.format(**names, times=times(more.value / less.value), most=f"{100 * _MOST_BYTES_APART:g}")]


def _is_far_above(more: Mean, less: Mean) -> bool:
    return more.value > less.value * (1 + _MOST_BYTES_APART) + ALARM_FLOOR_BYTES


def _sentence(text: str) -> str:
    """Note that all records share, as a sentence; a name at its start keeps its spelling."""
    if text[:1].isupper():
        return f"{text}."
    return f"{text[0].upper()}{text[1:]}." if _BEGINS_WITH_WORD.match(text) else f"For all: {text}."


def twin_notes(rows: Sequence[Row], cases: Mapping[str, list[Record]]) -> list[str]:
    """Ratios between two runs of the baseline under different names."""
    twins = {name for name, records in cases.items() if records[0].is_twin}
    notes = []
    for row in rows:
        if row.strategy not in twins or row.ratio is None:
            continue
        inside = limits(row.ratio.interval)
        ratio = f"{times(row.ratio.value)} ({inside})" if inside else times(row.ratio.value)
        notes.append(_TWIN.format(name=row.strategy, ratio=ratio))
        if row.ratio.interval is not None and not row.ratio.interval.contains(1.0):
            notes.append(_TWIN_DIFFERS)
    return notes


def preparation_notes(cases: Mapping[str, list[Record]]) -> list[str]:
    """Stages of the time before the first timed step, of the case that took longest."""
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
    return [
        _PREPARATION.format(
            total=digits(preparation.total_s),
            name=longest.strategy,
            stages=parts,
            limit=digits(preparation.limit_s),
        )
    ]


def computation_notes(cases: Mapping[str, list[Record]]) -> list[str]:
    """Precision and compiler of the steps, if these are not the author's."""
    methods = {record.method for records in cases.values() for record in records if record.method}
    devices = {record.device for records in cases.values() for record in records}
    precisions = sorted({method.precision for method in methods} - {AS_WRITTEN})
    return [
        *([_TPU_EMULATED] if "tpu-emulated" in devices else []),
        *(_MIXED[precision] for precision in precisions if precision in _MIXED),
        *([_XLA] if any(method.xla for method in methods) else []),
        *([_TF32] if any(method.tf32 for method in methods) else []),
        *_row_notes(cases),
    ]


def _row_notes(cases: Mapping[str, list[Record]]) -> list[str]:
    by_treatment: dict[str | None, list[str]] = {}
    for name, records in cases.items():
        for treatment in {record.method.sparse_duplicates for record in records if record.method}:
            by_treatment.setdefault(treatment, []).append(name)
    kept, summed = by_treatment.get("kept"), by_treatment.get("merged")
    if not kept or not summed:
        return []
    return [_SPARSE_ROWS.format(summed=", ".join(summed), kept=", ".join(kept))]


def input_notes(rows: Sequence[Row], cases: Mapping[str, list[Record]]) -> list[str]:
    """Source of the batches of timed steps, and cases that wait for it."""
    methods = (r.method for records in cases.values() for r in records)
    if not any(method.input == "pipeline" for method in methods if method):
        return []
    bound = [(row.strategy, row.input_share.value) for row in rows if row.input_bound and row.input_share]
    if not bound:
        return [_PIPELINE]
    shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in bound)
    return [_PIPELINE, _INPUT_BOUND.format(shares=shares)]


def observer_notes(cases: Mapping[str, list[Record]]) -> list[str]:
    """Change of the step time by measuring it, if that was measured."""
    changes = [
        f"of {name} by {_effect_of_measuring(pairs)}"
        for name, records in cases.items()
        if (pairs := [logs for r in records if r.observer and (logs := _log_ratios(r.observer))])
    ]
    missing = [
        _MEASURING_UNKNOWN.format(name=name, why=record.observer.why_none)
        for name, records in cases.items()
        for record in records
        if record.observer and record.observer.why_none
    ]
    known = [_MEASURING.format(changes=", ".join(changes))] if changes else []
    return [*known, *dict.fromkeys(missing)]


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
