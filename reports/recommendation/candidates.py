"""Candidates: strategies that may win, those that repeats distinguish by rate or by bytes, and the lead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.records.comparison import MIN_REPEATS_INTERVAL
from reports.contrasts import Contrasts
from reports.quantities import byte_count
from reports.rows.report import ByteLayer
from reports.rows.row import Row
from reports.statistics import Mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """Candidate with the highest figure, and those without a significant difference from it.

    `kind` is that of an advice; a figure without an interval has no certain lead.
    """

    kind: Literal["clear", "together", "no-interval"]
    leader: Row
    level: tuple[Row, ...] = ()

    @property
    def strategies(self) -> tuple[str, ...]:
        return (self.leader.strategy, *(row.strategy for row in self.level))


def can_win(row: Row) -> bool:
    """True if a row may win: its figures are plausible and it is proven correct."""
    return row.status == "ok" and row.rate is not None and row.mark.proven


def lead_of(candidates: Sequence[Row], contrasts: Contrasts) -> Lead:
    """Leading row, and the rows that the repeats cannot distinguish from it.

    Args:
        candidates: at least one row, in descending order of the compared figure: rates, or examples per
            price.
    """
    leader = candidates[0]
    if leader.rate is None or leader.rate.interval is None:
        return Lead(kind="no-interval", leader=leader)
    level = tuple(row for row in candidates[1:] if together(leader, row, contrasts))
    return Lead(kind="together" if level else "clear", leader=leader, level=level)


def together(first: Row, second: Row, contrasts: Contrasts) -> bool:
    """True without a significant difference between two rows in what `contrasts` compares.

    With too few repeats of either row no difference is significant.

    Args:
        first: the row that stands higher.
        second: the other one.
    """
    if first.rate is None or second.rate is None or first.rate.interval is None:
        return True
    return not contrasts.ahead(first.strategy, second.strategy)


def rows_with_too_few(lead: Lead, contrasts: Contrasts) -> tuple[str, ...]:
    """Names, with n, of those level with the leader whose repeats are too few for a ratio to it.

    Args:
        contrasts: contrasts from which `lead` was computed.
    """
    ratios = [(row, contrasts.of(lead.leader.strategy, row.strategy)) for row in lead.level]
    return tuple(
        f"{row.strategy} (n = {ratio.n_baseline})"
        for row, ratio in ratios
        if ratio and ratio.interval is None
    )


def ranks(rows: Sequence[Row], contrasts: Contrasts) -> dict[str, int]:
    """Rank of each candidate with an interval; ties with the head of a group share its rank.

    Args:
        rows: all rows, in falling order of standing.
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


_LEAST_SHARE = 0.995
"""Share of the larger figure from which on counted bytes are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentBytes:
    """Bytes that a strategy sends in a step.

    Attributes:
        is_predicted: True for bytes of the plan, which are the same in every repeat.
        is_bound: True for an upper bound, False for an exact number.
    """

    mean: Mean
    is_predicted: bool
    is_bound: bool

    @property
    def at_least(self) -> float:
        """Lower limit of the bytes sent; 0 for an upper bound."""
        return 0.0 if self.is_bound else self.mean.value

    @property
    def text(self) -> str:
        return f"at most {byte_count(self.mean.value)}" if self.is_bound else byte_count(self.mean.value)

    def is_surely_less(self, other: SentBytes) -> bool:
        """True if both ranges are disjoint; measured bytes also need three repeats and 0.5 % difference."""
        if not (self.is_predicted and other.is_predicted):
            n = min(self.mean.n, other.mean.n)
            if n < MIN_REPEATS_INTERVAL or self.mean.value > _LEAST_SHARE * other.mean.value:
                return False
        return self.mean.high < (0.0 if other.is_bound else other.mean.low)


def layer_of(rows: Iterable[Row]) -> ByteLayer:
    """Layer of bytes that all of these rows have."""
    return "tcp" if all(row.tcp_bytes is not None for row in rows) else "payload"


def sent_by(row: Row, layer: ByteLayer) -> SentBytes | None:
    """Bytes that a row sends in a step by one layer; None if unknown."""
    is_predicted = layer == "payload"
    mean = row.payload_bytes if is_predicted else row.tcp_bytes
    if mean is None:
        return None
    return SentBytes(mean=mean, is_predicted=is_predicted, is_bound=is_predicted and row.payload_is_bound)
