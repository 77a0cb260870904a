"""Rows with what the folders of their repeats hold beside steps: plans, last lines of logs, traces."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from harness.records.record import Record
from harness.records.run_documents import TRACE
from harness.records.stored_run import StoreError
from reports.load import Run
from reports.repeat_files.plans import placement_of
from reports.rows.evidence import Problem, TraceFile
from reports.rows.report import LeftOut
from reports.rows.row import Row

N_LOG_LINES = 12
_NAMED_WORKER = re.compile(r"\bworker (\d+)\b")


def with_logs(
    run: Run, records: Sequence[Record], problems: Sequence[Problem], left_out: list[LeftOut]
) -> tuple[Problem, ...]:
    """Problems of a case, each with the end of a log of the first of its repeats that left one.

    Args:
        left_out: what is no log of the run folder's own is added to it.
    """
    by_repeat = {record.repeat: record for record in records}
    return tuple(_with_log(run, problem, by_repeat, left_out) for problem in problems)


def _with_log(run: Run, problem: Problem, by_repeat: dict[int, Record], left_out: list[LeftOut]) -> Problem:
    for record in (by_repeat[repeat] for repeat in problem.repeats):
        name = None
        try:
            name = _telling_log(run.stored.worker_logs(record), problem.message)
            if name is not None:
                log = run.stored.log_tail(record, name, n_lines=N_LOG_LINES)
                return replace(problem, log=log, log_path=run.stored.name_of(record, name))
        except StoreError as error:
            where = f"{run.name}: {record.case}/{record.repeat}/{name or ''}"
            left_out.append(LeftOut(where=where, why=f"{error}; its end is not shown"))
    return problem


def _telling_log(written: Sequence[str], message: str) -> str | None:
    """The log of the worker that an error names, else the one written last."""
    named = _NAMED_WORKER.search(message)
    own = None if named is None else f"worker-{named[1]}.log"
    return own if own in written else (written[-1] if written else None)


def traces_of(run: Run, records: Sequence[Record]) -> tuple[TraceFile, ...]:
    """Traced steps of a case that lie in the run folder."""
    return tuple(
        TraceFile(repeat=record.repeat, path=run.stored.name_of(record, TRACE))
        for record in sorted(records, key=lambda record: record.repeat)
        if run.stored.has_file(record, TRACE)
    )


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
