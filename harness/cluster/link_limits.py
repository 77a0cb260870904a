"""Limits of the links of workers: as a person asks for them, and as each link gets its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from pydantic import Field

from harness.canonical import JsonValue
from harness.sections import Section

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


Rate: TypeAlias = Annotated[float, Field(gt=0, le=MOST_MBIT, allow_inf_nan=False)]
Burst: TypeAlias = Annotated[int, Field(ge=2, le=10**6)]


class WorkerLink(Section):
    """Limit of one worker's link in place of that of all; a rate of None is no limit.

    Attributes:
        burst_kb: thousands of bytes; None takes that of all.
    """

    rate_mbit: Rate | None
    burst_kb: Burst | None = None


WorkerLinks: TypeAlias = tuple[tuple[int, WorkerLink], ...]
"""Those that differ, by the worker's number."""


def limits_of(
    rate_mbit: float | None, burst_kb: int | None, different: WorkerLinks, n_workers: int
) -> Limits:
    """Limits of the links of all workers.

    Args:
        rate_mbit: None for no limit.
        burst_kb: thousands of bytes; None takes one that suits the rate.
    """
    links = dict(different)
    asked = (
        (links[worker].rate_mbit, links[worker].burst_kb or burst_kb)
        if worker in links
        else (rate_mbit, burst_kb)
        for worker in range(n_workers)
    )
    return tuple(_limit(rate, burst) for rate, burst in asked)


def other_keys(burst_kb: int | None, different: WorkerLinks) -> dict[str, JsonValue]:
    """The keys of `cluster.link` beside the rate; none where there was no choice."""
    workers: dict[str, JsonValue] = {str(worker): link.model_dump() for worker, link in different}
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
