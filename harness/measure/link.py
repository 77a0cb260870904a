"""Measures limited links between workers before a case runs, and checks them against their limits."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.cluster import Limits, rate_between
from harness.errors import CaseError
from harness.measure.timeouts import USUAL, Timeouts
from harness.provision.protocols import ProcessSet
from harness.records.costs import Link, MeasuredLink
from harness.worker.jobs import link_rate
from harness.worker.jobs.link_rate import Place

MOST_OFF = 0.10
_WINDOW_S = 0.3
_LEAST_WINDOW_BITS = 64 * 1514 * 8  # so many packets even at a low rate that one more or less hardly matters
_ATTEMPTS = 3  # a busy machine may keep a worker from sending; but no link exceeds its limit


def measured_links(
    processes: ProcessSet, limits: Limits, timeouts: Timeouts = USUAL
) -> tuple[MeasuredLink, ...] | None:
    """Measure TCP between each worker and the next, one direction at a time.

    Args:
        limits: limits of the workers' links.
    Returns:
        Rates that each worker sent to the next and received from the previous one; None if no
        link is limited or a worker is alone.
    Raises:
        CaseError: `link-off-rate`, if a rate is more than 10 % off.
    """
    n_workers = len(processes.pids)
    if n_workers < 2 or all(limit is None for limit in limits):
        return None
    hosts = [(host,) for host in processes.hosts]
    places = processes.call(link_rate.await_sender, hosts, timeout_s=timeouts.link_s, stage="provision")
    sent: dict[int, float] = {}
    for senders in _rounds(n_workers):
        limited = [_Pair.of(sender, limits) for sender in senders]
        sent |= _measured(processes, places, [pair for pair in limited if pair is not None], timeouts)
    processes.call(link_rate.await_no_more, [()] * n_workers, timeout_s=timeouts.link_s, stage="provision")
    return tuple(
        MeasuredLink(
            requested_mbit=None if limit is None else limit.rate_mbit,
            burst_bytes=None if limit is None else limit.burst_bytes,
            sent_mbit=sent.get(worker),
            received_mbit=sent.get((worker - 1) % n_workers),
        )
        for worker, limit in enumerate(limits)
    )


def link_of_record(requested_mbit: float | None, workers: Sequence[MeasuredLink] | None) -> Link:
    """Summary of measured rates: a link is as fast as its slower direction, and the slowest link counts."""
    if workers is None:
        return Link(requested_mbit=requested_mbit)
    rates = [
        rate for worker in workers for rate in (worker.sent_mbit, worker.received_mbit) if rate is not None
    ]
    return Link(requested_mbit=requested_mbit, measured_mbit=min(rates), workers=tuple(workers))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pair:
    """A sending worker and the next one, with the bytes that their limits allow."""

    sender: int
    receiver: int
    asked_mbit: float
    lead_bytes: int

    @staticmethod
    def of(sender: int, limits: Limits) -> "_Pair | None":
        receiver = (sender + 1) % len(limits)
        asked_mbit = rate_between(limits[sender], limits[receiver])
        if asked_mbit is None:
            return None
        buckets = [limit.burst_bytes for limit in (limits[sender], limits[receiver]) if limit is not None]
        return _Pair(sender=sender, receiver=receiver, asked_mbit=asked_mbit, lead_bytes=sum(buckets))

    @property
    def window_s(self) -> float:
        return max(_WINDOW_S, _LEAST_WINDOW_BITS / (self.asked_mbit * 1e6))


def _rounds(n_workers: int) -> list[list[int]]:
    """Groups of senders; no sender receives in its own group."""
    even = n_workers - n_workers % 2
    last = [] if even == n_workers else [[n_workers - 1]]
    return [list(range(0, even, 2)), list(range(1, even, 2)), *last]


def _measured(
    processes: ProcessSet, places: Sequence[Place], pairs: Sequence[_Pair], timeouts: Timeouts
) -> dict[int, float]:
    left = list(pairs)
    rates: dict[int, float] = {}
    for _ in range(_ATTEMPTS):
        rates |= _rates(processes, places, left, timeouts)
        left = [pair for pair in left if abs(rates[pair.sender] / pair.asked_mbit - 1) > MOST_OFF]
        if not left:
            return rates
    pair = left[0]
    raise CaseError(
        "link-off-rate",
        f"the link from worker {pair.sender} to worker {pair.receiver} must carry {pair.asked_mbit:g} Mbit/s "
        f"within {MOST_OFF:.0%}, got {rates[pair.sender]:.3g}; ask for less, or keep this machine free",
        stage="provision",
        field="cluster.link.rate_mbit",
    )


def _rates(
    processes: ProcessSet, places: Sequence[Place], pairs: Sequence[_Pair], timeouts: Timeouts
) -> dict[int, float]:
    senders = {pair.sender: (places[pair.receiver], None) for pair in pairs}
    receivers = {pair.receiver: (None, (pair.lead_bytes, pair.window_s)) for pair in pairs}
    idle = (None, None)
    args = [(senders | receivers).get(worker, idle) for worker in range(len(processes.pids))]
    # The time before the window covers bursts and TCP's slow start.
    longest_s = max(
        (pair.window_s + pair.lead_bytes * 8 / (pair.asked_mbit * 1e6) for pair in pairs), default=0
    )
    by_worker = processes.call(
        link_rate.transfer, args, timeout_s=2 * longest_s + timeouts.link_s, stage="provision"
    )
    rates = {pair.sender: by_worker[pair.receiver] for pair in pairs}
    return {sender: rate for sender, rate in rates.items() if rate is not None}
