"""Candidates: which strategies may win, which of them the repeats tell apart, and which lead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from reports.contrasts import Contrasts
from reports.rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """The candidate with the highest figure, and those that repeats do not tell from it.

    `kind` is that of an advice: a figure without an interval leads nobody.
    """

    kind: Literal["clear", "together", "no-interval"]
    leader: Row
    level: tuple[Row, ...] = ()

    @property
    def strategies(self) -> tuple[str, ...]:
        """The leader's name, and those of its equals."""
        return (self.leader.strategy, *(row.strategy for row in self.level))


def can_win(row: Row) -> bool:
    """Whether a row may be called fastest: plausible figures, and shown to compute the right thing."""
    return row.status == "ok" and row.rate is not None and row.mark.proven


def lead_of(candidates: Sequence[Row], contrasts: Contrasts) -> Lead:
    """Who leads.

    Args:
        candidates: at least one, in falling order of what `contrasts` compares: rates, or examples per price.
    """
    leader = candidates[0]
    if leader.rate is None or leader.rate.interval is None:
        return Lead(kind="no-interval", leader=leader)
    level = tuple(row for row in candidates[1:] if together(leader, row, contrasts))
    return Lead(kind="together" if level else "clear", leader=leader, level=level)


def together(first: Row, second: Row, contrasts: Contrasts) -> bool:
    """Whether the repeats cannot tell two rows apart, by rate or by what `contrasts` divides it by.

    Too few repeats of either tell nothing, whatever their figures are.

    Args:
        first: the row that stands higher.
        second: the other one.
    """
    if first.rate is None or second.rate is None or first.rate.interval is None:
        return True
    return not contrasts.ahead(first.strategy, second.strategy)


def too_few_repeats(lead: Lead, contrasts: Contrasts) -> str:
    """Whose repeats are too few for a ratio to the leader, as the end of a sentence; empty if nobody's are.

    Args:
        contrasts: those that the lead is of.
    """
    ratios = [(row, contrasts.of(lead.leader.strategy, row.strategy)) for row in lead.level]
    few = [
        f"{row.strategy} (n={ratio.n_baseline})" for row, ratio in ratios if ratio and ratio.interval is None
    ]
    return f", with too few repeats of {' and '.join(few)} for an interval" if few else ""


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
