"""Trust light: quality of the conditions of a run, with the reasons in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from harness.records.record import Record, Status
from reports.recommendation.phrases import DISTURBANCES, disturbances
from reports.rows.report import Comparison, LeftOut, Trust, TrustLevel
from reports.shapes import strategy_label

_WORDS: Mapping[TrustLevel, str] = {"red": "Problems", "amber": "Caution", "grey": "Unknown", "green": "Good"}
"""Level → its word, the gravest first."""
_LEVELS: Mapping[Status, TrustLevel] = {"failed": "red", "implausible": "red", "skipped": "amber"}
_MOST_NAMED = 3


def trust_of(
    records: Sequence[Record], comparisons: Sequence[Comparison], left_out: Iterable[LeftOut]
) -> Trust:
    """Trust light of a report.

    Args:
        records: all records of the report.
        comparisons: all comparisons of these records.
        left_out: files and records that the report could not use.
    """
    reasons = [*_broken(records, left_out), *_load(records, comparisons)]
    order = list(_WORDS)
    reasons.sort(key=lambda reason: order.index(reason[0]))
    level = reasons[0][0]
    # What is good beside a problem is no reason for it.
    texts = [text for other, text in reasons if level == "green" or other != "green"]
    return Trust(level=level, word=_WORDS[level], reason="; ".join(texts))


def _broken(records: Sequence[Record], left_out: Iterable[LeftOut]) -> Iterator[tuple[TrustLevel, str]]:
    n_damaged = sum(item.is_damage for item in left_out)
    if n_damaged:
        yield "red", f"{n_damaged} damaged or missing {'file' if n_damaged == 1 else 'files'}"
    statuses = [record.status for record in records if not record.is_broken_by_faults]
    if "ok" not in statuses:
        yield "red", "no usable repeat"
    for status, level in _LEVELS.items():
        if status in statuses:
            yield level, _named(status, records)
    if not n_damaged and set(statuses) == {"ok"}:
        yield "green", "no failures, no damaged files"


def _named(status: Status, records: Sequence[Record]) -> str:
    """Strategies with repeats of a status, as in `ps failed in 4 of 4 repeats`."""
    n_repeats = Counter(map(strategy_label, records))
    counts = Counter(strategy_label(r) for r in records if r.status == status and not r.is_broken_by_faults)
    verb = "failed" if status == "failed" else f"was {status}"
    named = [f"{name} {verb} in {n} of {n_repeats[name]} repeats" for name, n in counts.most_common()]
    more = len(named) - _MOST_NAMED
    return ", ".join((*named[:_MOST_NAMED], *([f"{more} more {status}"] if more > 0 else [])))


def _load(records: Sequence[Record], comparisons: Sequence[Comparison]) -> Iterator[tuple[TrustLevel, str]]:
    shares = [
        record.stability.foreign_cpu
        for record in records
        if record.stability is not None and record.stability.foreign_cpu is not None
    ]
    disturbed = [reasons for one in comparisons if (reasons := disturbances(one.note_values))]
    if disturbed:
        words = ", ".join(dict.fromkeys(chain.from_iterable(disturbed)))
        part = f" in {len(disturbed)} of {len(comparisons)} comparisons" if len(comparisons) > 1 else ""
        yield "amber", words + part
    if shares:
        is_busy = DISTURBANCES["machine-busy"] in chain.from_iterable(disturbed)
        most = f"other programs used at most {100 * max(shares):.0f} % of the workers' cores in a repeat"
        yield "amber" if is_busy else "green", most
    else:
        yield "grey", "load of other programs not measured"
