"""Trials at commits: what a case's runs there have shown, and what each says of its commit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.bisection.checkout import Commit
from harness.bisection.search import Finding
from harness.cli import output
from harness.errors import CaseError, StoreError, UsageError
from reports.changes.changes import ByRate, Factor, changes_between
from reports.load import Run, load
from reports.quantities import limits, times

RunAt = Callable[[Commit], Path]
"""Runs the experiment by the code of a commit, and says in which folder; as `CommitRuns.run`."""
_NO_ROUNDS = "the case has no rounds beside the baseline, and so no ratio to it"


@dataclass(frozen=True, kw_only=True, slots=True)
class Skipped:
    """A commit that says nothing, and why."""

    commit: Commit
    why: str


@dataclass(kw_only=True, slots=True)
class Trials:
    """What runs at commits have shown so far.

    Attributes:
        strategy: of the case. by_rates: whether it is judged by its rate, not by its ratio to the baseline.
        of_workload: commits are of the workload's repository, not of stratbench's.
        runs: index of a commit → its run.
    """

    commits: Sequence[Commit]
    run_at: RunAt
    strategy: str
    by_rates: bool
    of_workload: bool = False
    runs: dict[int, Run] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)

    def measure(self, index: int) -> bool:
        """Run a commit; False where that gives nothing to compare, and the reason is among the skipped."""
        commit = self.commits[index]
        output.warn(f"running {commit}")
        try:
            run = load(self.run_at(commit))
        except (CaseError, StoreError, UsageError) as error:
            return self._skip(commit, error.message)
        codes = [
            each.provenance.workload if self.of_workload else each.provenance
            for each in run.records
            if each.provenance
        ]
        of = {code.git_sha for code in codes if code is not None} - {None}
        if of - {commit.sha}:
            return self._skip(commit, f"the code that ran was that of {', '.join(map(str, of))}")
        self.runs[index] = run
        return True

    def between(self, earlier: int, later: int) -> tuple[Factor | None, str]:
        """By what the case's figure was multiplied between two runs, and why that is not known."""
        changes = changes_between(
            self.runs[earlier], self.runs[later], threshold=0.0, by_rates=self.by_rates, anyway=True
        )
        change = next((each for each in changes.cases if each.strategy == self.strategy), None)
        if change is None:
            return None, "the case is in neither run"
        # A rate in place of a ratio would show how fast the machine was that minute.
        if change.factor is not None and isinstance(change.judged_by, ByRate) and not self.by_rates:
            return None, _NO_ROUNDS
        return change.factor, change.why

    def why_no_result(self, index: int) -> str:
        """Why a commit's run gives no figure of the case; nothing where it does."""
        factor, why = self.between(index, index)
        return why if factor is None else ""

    def look(self, index: int, halfway: float) -> Finding:
        """What a commit is.

        Args:
            halfway: logarithm of the factor, against the first commit, that is as far from either end.
        """
        if not self.measure(index):
            return "untold"
        factor, why = self.between(0, index)
        if factor is None or factor.interval is None:
            self._skip(self.commits[index], why)
            return "untold"
        if math.log(factor.interval.low) > halfway:
            return "good"
        if math.log(factor.interval.high) < halfway:
            return "bad"
        self._skip(self.commits[index], f"{factor_text(factor)} against the first may be either")
        return "untold"

    def _skip(self, commit: Commit, why: str) -> bool:
        output.warn(f"skipped {commit}: {why}")
        self.skipped.append(Skipped(commit=commit, why=why))
        return False


def factor_text(factor: Factor | None) -> str:
    """A factor with its interval, as a person is told of it."""
    if factor is None:
        return "not known"
    return f"{times(factor.value)} [{limits(factor.interval)}]" if factor.interval else times(factor.value)
