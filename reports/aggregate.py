"""One figure out of the repeats of a case."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from harness.records.facts.costs import TracedTimes
from harness.records.record import Record
from reports.rows import Mean, TimeSplit
from reports.statistics import Estimate, estimate


def estimate_of(values: Sequence[float | None]) -> Estimate | None:
    """Geometric mean with interval of the repeats that have the figure, or None when none has."""
    present = [value for value in values if value is not None and 0 < value < math.inf]
    return estimate(present) if present else None


def mean_of(values: Sequence[float | None]) -> Mean | None:
    """Arithmetic mean and range of the repeats that have the figure, or None when none has."""
    present = [float(value) for value in values if value is not None]
    return _mean(present) if present else None


def timed_span(record: Record) -> tuple[int, int] | None:
    """Numbers of the first and the last step after the warm-up, whose first step is 1.

    Returns:
        None where the record does not tell.
    """
    if record.warmup_steps is None or record.step_s is None or not record.step_s.n:
        return None
    n_made = record.step_s.n if record.rounds is None else record.rounds.n_made
    return record.warmup_steps + 1, record.warmup_steps + n_made


def time_split_of(records: Sequence[Record]) -> TimeSplit | None:
    """Where traced steps' time went, or None when no repeat has a trace that can be used."""
    traced = [(r, r.traced_step) for r in records if r.traced_step is not None and _is_whole(r.traced_step)]
    if not traced:
        return None
    steps = [step for _, step in traced]
    received = [sum(step.received_bytes) for step in steps if step.received_bytes is not None]
    return TimeSplit(
        step_s=_mean([fmean(step.step_s) for step in steps]),
        compute_s=_mean([fmean(step.compute_s) for step in steps]),
        transfer_s=_mean([fmean(step.transfer_s) for step in steps]),
        wait_s=_mean([fmean(step.wait_s) for step in steps]),
        rest_s=_mean([_rest_s(step) for step in steps]),
        receiving_s=_mean([fmean(step.receiving_s) for step in steps]),
        hidden_share=mean_of([_hidden_share(step) for step in steps]),
        received_bytes=mean_of(received),
        n_transfers=mean_of([None if step.n_transfers is None else sum(step.n_transfers) for step in steps]),
        algorithm_bytes_per_s=mean_of([_bandwidth(r.gradient_bytes, step) for r, step in traced]),
        bus_bytes_per_s=mean_of([_bandwidth(_busiest_bytes(r), step) for r, step in traced]),
        copy_s=mean_of([fmean(step.copy_s) for step in steps if step.copy_s]),
        host_s=mean_of([fmean(step.host_s) for step in steps if step.host_s]),
    )


def _bandwidth(n_bytes: float | None, step: TracedTimes) -> float | None:
    """Bytes per second of the transfer of the worker that was longest at it."""
    longest_s = max(step.receiving_s)
    return None if not n_bytes or longest_s <= 0 else n_bytes / longest_s


def _busiest_bytes(record: Record) -> float | None:
    """What the busiest worker sends in a traced step, or receives if that is more."""
    matrix = record.tcp_matrix
    if matrix is None or not is_square(matrix):
        return None
    lines = (*matrix, *zip(*matrix, strict=True))
    mean = max((sum(value or 0.0 for value in line) for line in lines), default=None)
    # One step of a period sends for all, and it is that which is traced.
    return None if mean is None else mean * (record.period or 1)


def _hidden_share(step: TracedTimes) -> float | None:
    """Share of transfer from others that went on while the worker computed; None where there was none."""
    in_all_s = sum(step.receiving_s)
    return None if in_all_s <= 0 else 1.0 - (sum(step.transfer_s) - sum(step.copy_s or ())) / in_all_s


def _rest_s(step: TracedTimes) -> float:
    """Mean over workers of what is none of a step's parts."""
    parts = (step.compute_s, step.transfer_s, step.host_s or (), step.wait_s)
    return (sum(step.step_s) - sum(map(sum, parts))) / len(step.step_s)


def _is_whole(step: TracedTimes) -> bool:
    n_workers = len(step.step_s)
    split = (step.compute_s, step.transfer_s, step.wait_s, step.receiving_s, step.copy_s, step.host_s)
    return n_workers > 0 and all(seconds is None or len(seconds) == n_workers for seconds in split)


def _mean(values: Sequence[float]) -> Mean:
    return Mean(value=fmean(values), low=min(values), high=max(values), n=len(values))


def predicted_step_s(record: Record) -> float | None:
    """Seconds of a step that computes like the control and then waits for its payload on the busiest link.

    Returns:
        None where no link was measured, or no control ran with it.
    """
    median_s = record.step_s.p50 if record.step_s else None
    if not record.wire_s or median_s is None or record.exposed_comm_s is None:
        return None
    return median_s - record.exposed_comm_s + record.wire_s


def between_hosts_bytes(record: Record) -> float | None:
    """Bytes of a step that leave their machine; None where that is not known."""
    matrix, hosts = record.tcp_matrix, record.hosts
    if matrix is None or hosts is None or len(hosts) < len(matrix) or not is_square(matrix):
        return None
    return sum(
        value or 0.0 for i, line in enumerate(matrix) for j, value in enumerate(line) if hosts[i] != hosts[j]
    )


def is_square(matrix: Sequence[Sequence[float | None]]) -> bool:
    """Whether each task has a cell for each task."""
    return all(len(line) == len(matrix) for line in matrix)


def mean_matrix(
    matrices: Sequence[tuple[tuple[float | None, ...], ...]],
) -> tuple[tuple[float | None, ...], ...] | None:
    """Mean of each cell over the repeats whose matrix is square and as large as the first such one."""
    size = next((len(m) for m in matrices if is_square(m)), 0)
    square = [m for m in matrices if len(m) == size and is_square(m)]
    if not square:
        return None

    def cell(i: int, j: int) -> float | None:
        mean = mean_of([m[i][j] for m in square])
        return mean.value if mean else None

    return tuple(tuple(cell(i, j) for j in range(size)) for i in range(size))
