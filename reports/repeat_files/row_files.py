"""A row with what the folders of its repeats hold beside steps: plan, passes, logs and traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.records.record import Record
from reports.load import Run
from reports.repeat_files.logs_and_traces import traces_of, with_logs
from reports.repeat_files.placements import placement_of
from reports.rows import LeftOut, Row


def row_with_files(
    run: Run,
    row: Row,
    records: Sequence[Record],
    usable: Sequence[Record],
    left_out: list[LeftOut],
    *,
    most_lines: int,
) -> Row:
    """The row, with what files of its repeats add to it.

    Args:
        left_out: what cannot be used is added to it.
        most_lines: of its plan.
    """
    return replace(
        row,
        problems=with_logs(run, records, row.problems, left_out),
        traces=traces_of(run, records),
        placement=placement_of(run, usable, left_out, most_lines=most_lines),
    )
