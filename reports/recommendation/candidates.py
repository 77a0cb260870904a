"""Candidates: which strategies may win, and which of them the repeats tell apart."""

from __future__ import annotations

from collections.abc import Sequence

from reports.contrasts import Contrasts
from reports.rows import Row


def can_win(row: Row) -> bool:
    """Whether a row may be called fastest: plausible figures, and shown to compute the right thing."""
    return row.status == "ok" and row.rate is not None and row.mark.proven


def together(first: Row, second: Row, contrasts: Contrasts) -> bool:
    """Whether the repeats cannot tell two rows apart.

    Args:
        first: the row that stands higher, with an interval.
        second: the other one; without an interval it counts as apart only when its figure lies below
            `first`'s interval.
    """
    if first.rate is None or second.rate is None or first.rate.interval is None:
        return True
    if second.rate.interval is None:
        return second.rate.value >= first.rate.interval.low
    return not contrasts.ahead(first.strategy, second.strategy)


def ranks(rows: Sequence[Row], contrasts: Contrasts) -> dict[str, int]:
    """Rank of each candidate with an interval; those that cannot be told apart from the head of a group
    share its rank.

    Args:
        rows: in falling order of standing.
    """
    by_strategy: dict[str, int] = {}
    head: Row | None = None
    candidates = [
        row for row in rows if can_win(row) and row.rate is not None and row.rate.interval is not None
    ]
    for place, row in enumerate(candidates, start=1):
        if head is not None and together(head, row, contrasts):
            by_strategy[row.strategy] = by_strategy[head.strategy]
        else:
            by_strategy[row.strategy], head = place, row
    return by_strategy
