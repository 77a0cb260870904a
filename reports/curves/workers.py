"""Shares of workers: the memory of each, and what each task holds, sends and receives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from harness.records.record import Record
from reports.rows import Row, ServerBalance, WorkerMemory

_Bytes = tuple[int | None, ...]


def memory_of(rows: Sequence[Row], usable: Mapping[str, Sequence[Record]]) -> tuple[WorkerMemory, ...]:
    """Peak memory of each worker, for each row of which it is stored."""
    memory = []
    for row in rows:
        records = usable.get(row.strategy, ())
        peaks = [r.peak_rss_bytes for r in records if r.peak_rss_bytes]
        n_workers = max(map(len, peaks), default=0)
        by_worker = [
            [peak for peak in column if peak is not None]
            for column in zip(*(each for each in peaks if len(each) == n_workers), strict=True)
        ]
        if not any(by_worker):
            continue
        low, high = (tuple(limit(each, default=None) for each in by_worker) for limit in (min, max))
        memory.append(
            WorkerMemory(
                strategy=row.strategy,
                n=max(map(len, by_worker)),
                peak_bytes=tuple(round(fmean(each)) if each else None for each in by_worker),
                low=() if low == high else low,
                high=() if low == high else high,
                variable_bytes=_variable_bytes(records),
            )
        )
    return tuple(memory)


def balance_of(rows: Sequence[Row], usable: Mapping[str, Sequence[Record]]) -> tuple[ServerBalance, ...]:
    """What tasks send and receive, for each row of which anything was counted between two tasks."""
    balances = []
    for row in rows:
        records, matrix = usable.get(row.strategy, ()), row.tcp_matrix
        if matrix is None or len(matrix) < 2:
            continue
        sent, received = _sums(matrix), _sums(tuple(zip(*matrix, strict=True)))
        if not any(sent):
            continue
        variables = _variable_bytes(records)
        balances.append(
            ServerBalance(
                strategy=row.strategy,
                n=sum(r.tcp_matrix is not None for r in records),
                sent_bytes=sent,
                received_bytes=received,
                variable_bytes=variables,
                sent_imbalance=_imbalance(sent),
                received_imbalance=_imbalance(received),
                variable_imbalance=_imbalance(variables or ()),
            )
        )
    return tuple(balances)


def _variable_bytes(records: Sequence[Record]) -> _Bytes | None:
    """Of the first repeat that has them: a plan's variables are the same in all."""
    return next((r.variable_bytes for r in records if r.variable_bytes), None)


def _sums(lines: Sequence[Sequence[float | None]]) -> tuple[int, ...]:
    return tuple(round(sum(value or 0.0 for value in line)) for line in lines)


def _imbalance(values: Sequence[int | None]) -> float | None:
    """The largest ÷ the mean; None where all are nothing."""
    known = [value for value in values if value is not None]
    return max(known) / fmean(known) if any(known) else None
