"""Figures of one repeat that are derived from several fields of its record."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from harness.records.costs import TracedTimes
from harness.records.record import Record


def timed_span(record: Record) -> tuple[int, int] | None:
    """Numbers of the first and last step after the warm-up, whose first step is 1; None if unknown."""
    if record.warmup_steps is None or record.step_s is None or not record.step_s.n:
        return None
    n_made = record.step_s.n if record.rounds is None else record.rounds.n_made
    return record.warmup_steps + 1, record.warmup_steps + n_made


def loss_step(place: int) -> Callable[[Record], int | None]:
    """Reader of the step number of the first loss (place 0) or the last one (-1)."""

    def of(record: Record) -> int | None:
        span = timed_span(record) if record.loss else None
        return None if span is None else span[place]

    return of


def between_hosts_bytes(record: Record) -> float | None:
    """Bytes per step between different hosts; None if unknown."""
    matrix, hosts = record.tcp_matrix, record.hosts
    if matrix is None or hosts is None or len(hosts) < len(matrix):
        return None
    return sum(
        value or 0.0 for i, line in enumerate(matrix) for j, value in enumerate(line) if hosts[i] != hosts[j]
    )


def peak_rss_bytes(record: Record) -> int | None:
    """Peak resident memory of the largest worker."""
    return max((peak for peak in record.peak_rss_bytes or () if peak is not None), default=None)


def is_traced(record: Record) -> bool:
    """True if a repeat has a traced step with the same parts for all workers."""
    step = record.traced_step
    if step is None:
        return False
    n_workers = len(step.step_s)
    parts = (step.compute_s, step.transfer_s, step.wait_s, step.receiving_s, step.copy_s, step.host_s)
    return n_workers > 0 and all(part is None or len(part) == n_workers for part in parts)


def traced_mean(part: str) -> Callable[[Record], float | None]:
    """Reader of a part of the traced step, mean over workers."""

    def of(record: Record) -> float | None:
        values = getattr(record.traced_step, part)
        return fmean(values) if values else None

    return of


def traced_sum(part: str) -> Callable[[Record], float | None]:
    """Reader of a count in the traced step, sum over workers."""

    def of(record: Record) -> float | None:
        values = getattr(record.traced_step, part)
        return None if values is None else sum(values)

    return of


def traced_rest_s(record: Record) -> float:
    """Time of the traced step outside its parts, mean over workers."""
    step = _traced(record)
    parts = (step.compute_s, step.transfer_s, step.host_s or (), step.wait_s)
    return (sum(step.step_s) - sum(map(sum, parts))) / len(step.step_s)


def hidden_share(record: Record) -> float | None:
    """Share of receiving time during which the worker computed; None without receiving."""
    step = _traced(record)
    receiving_s = sum(step.receiving_s)
    if receiving_s <= 0:
        return None
    return 1.0 - (sum(step.transfer_s) - sum(step.copy_s or ())) / receiving_s


def algorithm_bandwidth(record: Record) -> float | None:
    """Algorithm bandwidth as in NCCL's tests: bytes of one replica's gradients ÷ transfer time."""
    return _bandwidth(record.gradient_bytes, _traced(record))


def bus_bandwidth(record: Record) -> float | None:
    """Bus bandwidth as in NCCL's tests: bytes sent or received by the busiest worker ÷ transfer time."""
    matrix = record.tcp_matrix
    if matrix is None:
        return None
    lines = (*matrix, *zip(*matrix, strict=True))
    mean = max((sum(value or 0.0 for value in line) for line in lines), default=None)
    # The traced step sends for all steps of a period.
    n_bytes = None if mean is None else mean * (record.period or 1)
    return _bandwidth(n_bytes, _traced(record))


def _bandwidth(n_bytes: float | None, step: TracedTimes) -> float | None:
    """Bytes ÷ transfer time of the slowest worker."""
    longest_s = max(step.receiving_s)
    return None if not n_bytes or longest_s <= 0 else n_bytes / longest_s


def _traced(record: Record) -> TracedTimes:
    assert record.traced_step is not None
    return record.traced_step
