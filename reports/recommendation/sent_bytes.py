"""Bytes that strategies are weighed by: those of TCP where all have them, else the predicted payload."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.records.comparing.student_interval import MIN_REPEATS_INTERVAL
from reports.quantities import byte_count
from reports.rows import ByteLayer, Mean, Row

_LEAST_SHARE = 0.995
"""Counted bytes above that share of others are as many: percents in words would round to none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentBytes:
    """What a strategy sends in a step; `is_bound`: at most that much, of what nobody has counted.

    `is_predicted`: it follows from the plan, and is the same in every repeat.
    """

    mean: Mean
    is_predicted: bool
    is_bound: bool

    @property
    def at_least(self) -> float:
        """The figure that it sends at least; of a bound that may be nothing."""
        return 0.0 if self.is_bound else self.mean.value

    @property
    def text(self) -> str:
        """The figure in words."""
        return f"at most {byte_count(self.mean.value)}" if self.is_bound else byte_count(self.mean.value)

    def is_surely_less(self, other: SentBytes) -> bool:
        """Whether repeats show it: ranges apart, and of what was counted enough repeats and a difference."""
        if not (self.is_predicted and other.is_predicted):
            n = min(self.mean.n, other.mean.n)
            if n < MIN_REPEATS_INTERVAL or self.mean.value > _LEAST_SHARE * other.mean.value:
                return False
        return self.mean.high < (0.0 if other.is_bound else other.mean.low)


def layer_of(rows: Iterable[Row]) -> ByteLayer:
    """The layer that can be compared: one that all of these rows have."""
    return "tcp" if all(row.tcp_bytes is not None for row in rows) else "payload"


def sent_by(row: Row, layer: ByteLayer) -> SentBytes | None:
    """What a row sends in a step by one layer; None where that is not known."""
    is_predicted = layer == "payload"
    mean = row.payload_bytes if is_predicted else row.tcp_bytes
    if mean is None:
        return None
    return SentBytes(mean=mean, is_predicted=is_predicted, is_bound=is_predicted and row.payload_is_bound)
