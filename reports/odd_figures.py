"""Figures that a record made by hand may hold and no measurement has: left out, and said."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from harness.records.record import Record
from reports.aggregate import is_square


def without_odd_figures(record: Record) -> tuple[Record, tuple[str, ...]]:
    """The record without what nothing can be made of.

    Returns:
        The record, and for each such figure what it must be, what it is, and what becomes of it.
    """
    matrix, observer = record.tcp_matrix, record.observer
    whys, rate = list(_odd_rounds(record)), record.examples_per_s
    if rate is not None and not 0.0 < rate < math.inf:
        whys.append(f"examples_per_s: must be above 0, got {rate!r}; shown as missing")
        record = replace(record, examples_per_s=None)
    if matrix is not None and not is_square(matrix):
        lengths = ", ".join(map(str, sorted({len(line) for line in matrix})))
        whys.append(
            f"tcp_matrix: must have as many cells in each line as lines, got {len(matrix)} lines of {lengths}"
            "; shown as missing"
        )
        record = replace(record, tcp_matrix=None)
    if observer is not None and len(observer.with_s) != len(observer.without_s):
        whys.append(
            f"observer: must have windows in pairs, got {len(observer.with_s)} with and "
            f"{len(observer.without_s)} without; shown as missing"
        )
        record = replace(record, observer=None)
    return record, tuple(whys)


def _odd_rounds(record: Record) -> Iterator[str]:
    """Windows that took no time."""
    rounds = record.rounds
    if rounds is None:
        return
    for name, steps_s in (("step_s", rounds.step_s), ("baseline_step_s", rounds.baseline_step_s or ())):
        odd = [step_s for step_s in steps_s if not 0.0 < step_s < math.inf]
        if odd:
            yield f"rounds.{name}: must be above 0, got {odd[0]!r}; {len(odd)} of them are left out"
