"""Limits of the links of workers: as a person asks for them, and as each link gets its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from harness.canonical import JsonValue

_UNITS_MBIT = {"": 1.0, "kbit": 0.001, "mbit": 1.0, "gbit": 1000.0}
_BURST_S = 0.004  # so late a timer may be
_MOST_BURST_S = 0.008
# The largest piece that TCP hands over at once, with the headers of its packets. In a smaller bucket it is
# cut up, and acknowledged packet by packet.
_WHOLE_BYTES = 72_000
_LEAST_BURST_BYTES = 16_000
MOST_MBIT = 30_000.0
"""What the kernel's token bucket can be told: 2³² bytes a second, rounded down."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkLimit:
    """Limit of one worker's link, the same in both directions.

    Attributes:
        burst_bytes: what may pass at once after a silence.
    """

    rate_mbit: float
    burst_bytes: int


Limits: TypeAlias = Sequence[LinkLimit | None]
"""Of each worker's link in worker order; None has no limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLink:
    """What is asked of one worker's link in place of what is asked of all; a rate of None is no limit."""

    rate_mbit: float | None
    burst_kb: int | None = None


WorkerLinks: TypeAlias = tuple[tuple[int, WorkerLink], ...]
"""Those that differ, by the worker's number."""


def parse_rate_mbit(text: str) -> float | None:
    """Read `100mbit`, `1gbit` or a plain number of Mbit/s; None where it is none of these."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*([a-z]*)", text.strip().lower())
    unit = None if match is None else _UNITS_MBIT.get(match[2])
    return None if match is None or unit is None else float(match[1]) * unit


def limits_of(
    rate_mbit: float | None, burst_kb: int | None, different: WorkerLinks, n_workers: int
) -> Limits:
    """Limits of the links of all workers.

    Args:
        rate_mbit: None for no limit.
        burst_kb: thousands of bytes; None takes one that suits the rate.
    """
    others = WorkerLink(rate_mbit=rate_mbit, burst_kb=burst_kb)
    asked = [dict(different).get(worker, others) for worker in range(n_workers)]
    return tuple(_limit(link.rate_mbit, link.burst_kb or burst_kb) for link in asked)


def other_keys(burst_kb: int | None, different: WorkerLinks) -> dict[str, JsonValue]:
    """The keys of `cluster.link` beside the rate; none where there was no choice."""
    workers: dict[str, JsonValue] = {
        str(worker): {
            "rate_mbit": link.rate_mbit,
            **({} if link.burst_kb is None else {"burst_kb": link.burst_kb}),
        }
        for worker, link in different
    }
    return {
        # Runs from before there were such keys keep their hash.
        **({} if burst_kb is None else {"burst_kb": burst_kb}),
        **({"workers": workers} if workers else {}),
    }


def rate_between(sender: LinkLimit | None, receiver: LinkLimit | None) -> float | None:
    """The rate in Mbit/s from one worker to another, that of the slower link; None without a limit."""
    return min((limit.rate_mbit for limit in (sender, receiver) if limit is not None), default=None)


def _limit(rate_mbit: float | None, burst_kb: int | None) -> LinkLimit | None:
    if rate_mbit is None:
        return None
    burst_bytes = _burst_bytes(rate_mbit * 1e6 / 8) if burst_kb is None else burst_kb * 1000
    return LinkLimit(rate_mbit=rate_mbit, burst_bytes=burst_bytes)


def _burst_bytes(bytes_per_s: float) -> int:
    """A burst that costs no rate on a busy machine, and that a step's bytes are many times of."""
    least_bytes = _WHOLE_BYTES if bytes_per_s * _MOST_BURST_S >= _WHOLE_BYTES else _LEAST_BURST_BYTES
    return max(least_bytes, int(bytes_per_s * _BURST_S))
