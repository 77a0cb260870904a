"""Rows that cannot win: which are as fast as the leader, each with its reason, and which have no result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reports.contrasts import Contrasts
from reports.rows import MarkKind, Row

_REASONS: Mapping[MarkKind, str] = {
    "control": "a control: the rate if communication cost nothing",
    "not-equivalent": "NOT equivalent to the reference",
    "beyond-bound": "BEYOND what its compressors may lose",
    "undecidable": "undecidable: rounding hides whether it computes the right thing",
    "not-checked": "not checked for equivalence",
    "statistical": "of a class that is not held to equivalence",
}


def outside(rows: Sequence[Row], leader: Row | None, contrasts: Contrasts) -> tuple[str, ...]:
    """Sentences on rows that may not win: those ahead of the leader by their figures, then those without any.

    Args:
        leader: None where no row may win, so that all others are named.
    """
    others = [
        row for row in rows if row.status == "ok" and row.rate is not None and row.mark.kind in _REASONS
    ]
    named: dict[str, list[str]] = {}
    for row in others:
        how = "Measured" if leader is None else _how_it_stands(row, leader, contrasts)
        if how is not None:
            named.setdefault(how, []).append(f"{row.strategy} ({_REASONS[row.mark.kind]})")
    lacking = [f"{row.strategy} ({row.status})" for row in rows if row.status != "ok"]
    return (
        *(f"{how}, but cannot win: {'; '.join(names)}." for how, names in named.items()),
        *((f"Without a result to rank: {', '.join(lacking)}.",) if lacking else ()),
    )


def _how_it_stands(row: Row, leader: Row, contrasts: Contrasts) -> str | None:
    """What repeats show of a row whose figure is above the leader's; None where it is not."""
    lead = contrasts.of(row.strategy, leader.strategy)
    if lead is None or lead.value <= 1.0:
        return None
    if contrasts.ahead(row.strategy, leader.strategy):
        return "Faster"
    return "Faster by figures without an interval" if lead.interval is None else "As fast by these repeats"
