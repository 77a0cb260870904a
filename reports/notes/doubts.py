"""Notes on what to doubt about the figures of a comparison."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from harness.records.record import Record
from reports.quantities import byte_count, digits, link_rate, times
from reports.rows import Mean, Row
from reports.shapes import ComparedShape

_WARNING = "Warning, for"
_UNSURE = 0.005
"""Of bytes of a step: what is in flight as the counters are read."""
ALARM_APART = 0.10
_ROUNDING = 1.0 + 1e-9
# What the transport itself sends in a step (headers, control messages); a tiny model's payload drowns in it.
ALARM_FLOOR_BYTES = 20_000
# What begins in another way begins with a name (`sync_batch_norm: …`) or with code.
_BEGINS_WITH_WORD = re.compile(r"[a-z-]+(?:[\s,]|$)")


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
        f"Strategy {name} ran with a batch of {batch}, the others with {shape.batch_size}; "
        "rates compare, step times do not."
        for name, batch in others.items()
    ]


def link_notes(cases: Mapping[str, list[Record]]) -> list[str]:
    """Limits of links that are not the same for all workers."""
    known = (r.link.workers for records in cases.values() for r in records if r.link and r.link.workers)
    asked = {tuple(each.requested_mbit for each in workers) for workers in known}
    return [
        f"Links are not equal: {', '.join(_limit(worker, mbit) for worker, mbit in enumerate(rates))}."
        for rates in sorted(asked, key=str)
        if len(set(rates)) > 1
    ]


def _limit(worker: int, mbit: float | None) -> str:
    return f"worker {worker} has {link_rate(mbit)}"


def until_notes(rows: Sequence[Row], cases: Mapping[str, list[Record]]) -> list[str]:
    """Whether ratios are known as closely as was asked for, where repeats went on until they are."""
    methods = (r.method for records in cases.values() for r in records)
    wanted = next((method.until_ci for method in methods if method and method.until_ci), None)
    if wanted is None:
        return []
    within = f"±{100 * wanted:.3g} %"
    widths = {row.strategy: _width(row) for row in rows if not row.is_baseline}
    wide = {name: width for name, width in widths.items() if width is None or width > wanted * _ROUNDING}
    if not wide:
        return [f"Repeats went on until each ratio was known within {within}."]
    told = (
        f"{name} {'has no interval' if width is None else f'±{100 * width:.2g} %'}"
        for name, width in wide.items()
    )
    return [f"Ratios were to be known within {within}; these are not: {', '.join(told)}."]


def _width(row: Row) -> float | None:
    """How far the upper limit of a ratio is from it, as a share; None without an interval."""
    if row.ratio is None or row.ratio.interval is None or not row.ratio.value:
        return None
    return row.ratio.interval.high / row.ratio.value - 1.0


def row_notes(row: Row) -> list[str]:
    """What a reader should doubt about a row's figures."""
    notes = []
    if row.mark.blind:
        notes.append(f"For {row.strategy}: {row.mark.explanation[0].lower()}{row.mark.explanation[1:]}")
    if row.n and row.n < row.n_repeats:
        notes.append(
            f"For {row.strategy}: {row.n} of {row.n_repeats} repeats count; the others are listed under "
            "failures."
        )
    if row.payload_is_bound:
        notes.append(
            f"For {row.strategy}: its payload is an upper bound, since the rows of sparse gradients are "
            "counted only in the step."
        )
    below = row.tcp_bytes and row.payload_bytes and row.tcp_bytes.value < row.payload_bytes.value
    if not (row.payload_is_bound and below):
        notes += _apart(row.strategy, ("TCP", row.tcp_bytes), ("predicted payload", row.payload_bytes))
    notes += _apart(row.strategy, ("interface", row.interface_bytes), ("TCP", row.tcp_bytes))
    if row.rate and row.window_rate and row.window_rate.value < row.rate.value * (1 - ALARM_APART):
        lost = digits(100 * (1 - row.window_rate.value / row.rate.value), significant=2)
        notes.append(
            f"For {row.strategy}: over the whole window the rate is {lost} % below that of the median step; "
            "a few slow steps cost that much."
        )
    return notes


def small_payload_notes(rows: Sequence[Row]) -> list[str]:
    """Why TCP bytes are well above a payload that is too small for an alarm."""
    sent = [
        f"{row.strategy} sends {byte_count(row.tcp_bytes.value)} for {byte_count(row.payload_bytes.value)} "
        f"({times(row.tcp_over_payload)})"
        for row in rows
        if row.tcp_bytes
        and row.payload_bytes
        and row.tcp_over_payload
        and row.tcp_over_payload > 1 + ALARM_APART
        and not _is_far_above(row.tcp_bytes, row.payload_bytes)
    ]
    if not sent:
        return []
    why = "A step's messages have headers and requests of some kB, which weigh much beside a small payload"
    return [f"{why}: over TCP {', '.join(sent)}."]


def is_warning(note: str) -> bool:
    """Whether a note is one that a reader must not miss."""
    return note.startswith(_WARNING)


def warning_notes(cases: Mapping[str, list[Record]]) -> list[str]:
    """Why cases are not what their strategies were chosen for."""
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
    """What the records say themselves: first what is of a strategy, then what all that say anything share."""
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
    if more.value < less.value * (1 - _UNSURE):
        return [
            f"For {strategy}: {outer_name} bytes are below {inner_name} bytes; one of the two must be wrong."
        ]
    if not _is_far_above(more, less):
        return []
    share = f"{times(more.value / less.value)} the" if less.value else "not zero, unlike the"
    return [f"For {strategy}: {outer_name} bytes are {share} {inner_name} bytes, more than 10 % apart."]


def _is_far_above(more: Mean, less: Mean) -> bool:
    return more.value > less.value * (1 + ALARM_APART) + ALARM_FLOOR_BYTES


def _sentence(text: str) -> str:
    """What all say, as a sentence; a name that it begins with stays as it is written."""
    if text[:1].isupper():
        return f"{text}."
    return f"{text[0].upper()}{text[1:]}." if _BEGINS_WITH_WORD.match(text) else f"For all: {text}."
