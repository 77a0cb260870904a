"""Trust light: how far the conditions of a run allow to rely on its figures, with the reasons in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from harness.records.outcome import UNSTEADY_SHARE
from harness.records.record import Record, Status
from reports.recommendation.phrases import often
from reports.rows.report import Comparison, LeftOut, Trust, TrustLevel

_WORDS: dict[TrustLevel, str] = {"green": "Good", "amber": "Caution", "red": "Problems"}
SUMMED_UP = ("machine-busy", "cores-shared")
"""Kinds of notes whose contents are in the reasons."""
_ORDER: tuple[TrustLevel, ...] = ("red", "amber", "green")


def trust_of(
    records: Sequence[Record], comparisons: Iterable[Comparison], left_out: Iterable[LeftOut]
) -> Trust:
    """Trust light of a report.

    Args:
        records: all that the report is of.
        comparisons: made of them.
        left_out: files and records that the report could not use.
    """
    reasons = [*_broken(records, left_out), *_load(records)]
    if any(note.kind == "cores-shared" for one in comparisons for note in one.note_values):
        reasons.append(("amber", "workers shared cores"))
    reasons.sort(key=lambda reason: _ORDER.index(reason[0]))
    level = reasons[0][0]
    return Trust(level=level, word=_WORDS[level], reason="; ".join(text for _, text in reasons))


def _broken(records: Sequence[Record], left_out: Iterable[LeftOut]) -> Iterator[tuple[TrustLevel, str]]:
    n_damaged = sum(item.is_damage for item in left_out)
    if n_damaged:
        yield "red", f"{n_damaged} damaged or missing {'file' if n_damaged == 1 else 'files'}"
    counts = Counter(record.status for record in records if not record.is_broken_by_faults)
    if not counts["ok"]:
        yield "red", "no usable repeat"
    levels: Sequence[tuple[Status, TrustLevel]] = (
        ("failed", "red"),
        ("implausible", "red"),
        ("skipped", "amber"),
    )
    for status, level in levels:
        if counts[status]:
            yield level, f"{counts[status]} of {len(records)} repeats {status}"
    if not n_damaged and counts["ok"] == counts.total():
        yield "green", "no failures, no damaged files"


def _load(records: Sequence[Record]) -> Iterator[tuple[TrustLevel, str]]:
    shares = [
        share
        for record in records
        if record.stability is not None and (share := record.stability.foreign_cpu) is not None
    ]
    most = f"{100 * max(shares, default=0.0):.0f} % of the workers' cores"
    n_loaded = sum(share >= UNSTEADY_SHARE for share in shares)
    if n_loaded:
        yield "amber", f"other programs used up to {most} {often(n_loaded, len(shares))}"
    elif shares:
        yield "green", f"other programs used at most {most}"
    else:
        yield "amber", "load of other programs not measured"
