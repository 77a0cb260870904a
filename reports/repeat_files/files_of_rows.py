"""Rows with the files of their repeats: plans, last lines of logs, traces, and steps to show."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from harness.records.record import Record
from harness.records.run_documents import TRACE
from harness.records.stored_run import StoreError
from reports.load import MAX_SHOWN_REPEATS, MAX_SHOWN_STEPS, Run
from reports.repeat_files.plans import placement_of
from reports.rows.parts import Problem, StepSeries, TraceFile
from reports.rows.report import LeftOut
from reports.rows.row import Row

N_LOG_LINES = 12
_NAMED_WORKER = re.compile(r"\bworker (\d+)\b")


def _with_log(run: Run, problem: Problem, by_repeat: dict[int, Record], left_out: list[LeftOut]) -> Problem:
    """Problem with the last lines of the log of its first repeat that has one."""
    for record in (by_repeat[repeat] for repeat in problem.repeats):
        name = None
        try:
            name = _relevant_log(run.stored.worker_logs(record), problem.message)
            if name is not None:
                log = run.stored.log_tail(record, name, n_lines=N_LOG_LINES)
                return replace(problem, log=log, log_path=run.stored.name_of(record, name))
        except StoreError as error:
            where = f"{run.name}: {record.case}/{record.repeat}/{name or ''}"
            left_out.append(LeftOut(where=where, why=f"{error}; its end is not shown"))
    return problem


def _relevant_log(written: Sequence[str], message: str) -> str | None:
    """Log of the worker that an error names, else the last one written."""
    named = _NAMED_WORKER.search(message)
    own = None if named is None else f"worker-{named[1]}.log"
    return own if own in written else (written[-1] if written else None)


def row_with_files(
    run: Run,
    row: Row,
    records: Sequence[Record],
    usable: Sequence[Record],
    left_out: list[LeftOut],
    *,
    most_lines: int,
) -> Row:
    """Row with logs, traces and placement from the files of its repeats.

    Args:
        left_out: list to which unusable files are added.
        most_lines: maximum number of lines of its placement.
    """
    by_repeat = {record.repeat: record for record in sorted(records, key=lambda record: record.repeat)}
    return replace(
        row,
        problems=tuple(_with_log(run, problem, by_repeat, left_out) for problem in row.problems),
        traces=tuple(
            TraceFile(repeat=repeat, path=run.stored.name_of(record, TRACE))
            for repeat, record in by_repeat.items()
            if run.stored.has_file(record, TRACE)
        ),
        placement=placement_of(run, usable, left_out, most_lines=most_lines),
    )


MOST_STEPS = 16_000
"""Most steps in a report, over all repeats."""
LEAST_STEPS = 24
"""Fewest steps of a shown repeat: fewer show no trend."""


class StepReader(Protocol):
    """Reader of the steps of one repeat, thinned evenly to `most`."""

    def __call__(self, run: Run, record: Record, /, *, most: int = ...) -> StepSeries | LeftOut: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShares:
    """Number of shown repeats per row, and of shown steps per repeat."""

    repeats: int
    steps: int

    @classmethod
    def of(cls, n_usable: Sequence[int]) -> StepShares:
        """Shares with as many repeats as possible, then as many steps as possible.

        Args:
            n_usable: number of repeats with steps of each row.
        """

        def n_shown(repeats: int) -> int:
            return sum(min(repeats, n) for n in n_usable)

        fitting = (r for r in range(MAX_SHOWN_REPEATS, 1, -1) if LEAST_STEPS * n_shown(r) <= MOST_STEPS)
        repeats = next(fitting, 1)
        steps = MOST_STEPS // max(1, n_shown(repeats))
        steps = max(LEAST_STEPS, min(MAX_SHOWN_STEPS, steps))
        return cls(repeats=repeats, steps=steps)


class ShownSteps:
    """Steps of successive rows, up to the limit of a report."""

    def __init__(self, read: StepReader, shares: StepShares) -> None:
        self._read = read
        self._shares = shares
        self._n_steps = 0
        self.n_not_shown = 0

    def of(self, run: Run, usable: Sequence[Record], left_out: list[LeftOut]) -> tuple[StepSeries, ...]:
        """Steps of some usable repeats of a row, evenly spread over all.

        Args:
            left_out: list to which repeats without readable steps are added, each once.
        """
        ordered = sorted(usable, key=lambda record: record.repeat)
        chosen = ordered[:: -(-len(ordered) // self._shares.repeats) or 1]
        self.n_not_shown += len(ordered) - len(chosen)
        series: list[StepSeries] = []
        for record in chosen:
            if self._n_steps + self._shares.steps > MOST_STEPS:
                self.n_not_shown += 1
                continue
            steps = self._read(run, record, most=self._shares.steps)
            if isinstance(steps, StepSeries):
                series.append(steps)
                self._n_steps += len(steps.seconds)
            else:
                item = replace(steps, where=f"{run.name}: {steps.where}")
                # `single` appears in several shapes; its missing file is listed once.
                if all(item.where != other.where for other in left_out):
                    left_out.append(item)
        return tuple(series)

    def left_out(self) -> tuple[LeftOut, ...]:
        """Note on repeats beyond the limit; empty if the chart itself states it."""
        if not self.n_not_shown or self._shares.repeats == MAX_SHOWN_REPEATS:
            return ()
        why = (
            f"those of {self.n_not_shown:,} repeats are not shown: a report shows at most {MOST_STEPS:,} "
            f"steps, and at least {LEAST_STEPS} of a repeat"
        )
        return (LeftOut(where="step times", why=why),)
