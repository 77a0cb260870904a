"""Search for the commit that a regression came with."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.atomic_files import write_json
from harness.cli import output
from harness.cli.nightly.commit_runs import (
    Checkout,
    Commit,
    CommitRuns,
    Finding,
    Narrowed,
    OutOfTimeError,
    narrowed,
    placed_in,
    single_case,
)
from harness.cli.nightly.nights import holdings
from harness.cli.nightly.publishing import answer_in_lines
from harness.cli.output import Answer
from harness.errors import EXIT_CASE, EXIT_OK, CaseError, StoreError, UsageError
from harness.experiment.cases import Case, expand
from harness.experiment.model import Experiment
from harness.host_facts import checkout_of, own_checkout
from harness.provision.temporary_folder import run_folder
from reports.changes.changes import ByRate, Factor, changes_between
from reports.history.figures import RATE, RATIO
from reports.history.store import reading
from reports.history.verdicts import SeriesVerdict, names_of, verdict_of
from reports.history.wording import STRATBENCH, series_name, workload_commit
from reports.load import Run, load
from reports.quantities import limits, times
from strategies.errors import suggestion

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


_METRICS = (RATIO.name, RATE.name)


def bisect(
    store: Path,
    spec: Experiment,
    case: str,
    *,
    confirm: int,
    budget_s: float | None,
    run_options: Sequence[str],
    environ: Mapping[str, str],
) -> Answer:
    """Run a case that has regressed by the code of commits, and say which one it came with.

    The commits are those of the repository that holds the workload's file; of a shipped workload, or one
    whose repository has not changed, stratbench's own.

    Args:
        case: as for `regression_of`.
        budget_s: for all runs together; None for as long as it takes.
        run_options: of `stratbench run`, for each of them. environ: of this process.
    Raises:
        UsageError: there is no such regression, or its commits are not here. CaseError: as `bisected`.
    """
    regression = regression_of(store, spec.name, case, confirm=confirm)
    cases = {each.id: each for each in expand(spec)}
    case_id = regression.series.subject.case
    if case_id not in cases:
        raise UsageError(f"must be a case of the experiment, got {case_id}, which it has not", field="bisect")
    code = code_of(regression, cases[case_id])
    commits = commits_of(code, Checkout(root=code.root, environ=environ))
    output.warn(f"bisecting {code.name} in {code.root}: {len(commits)} commits")
    until_s = None if budget_s is None else time.monotonic() + budget_s
    with run_folder() as folder:
        placed = placed_in(code.root, single_case(spec, cases[case_id]), working_directory=Path.cwd())
        document = placed.spec.to_document()
        runs = CommitRuns(
            root=code.root,
            is_own=code.is_own,
            start=placed.start,
            folder=folder,
            experiment=write_json(folder / "experiment.yaml", document),
            options=tuple(run_options),
            environ=environ,
            until_s=until_s,
        )
        return bisected(regression, code, commits, runs.run)


@dataclass(frozen=True, kw_only=True, slots=True)
class BisectedCode:
    """The repository whose commits are searched.

    Attributes:
        is_own: it is stratbench's, by whose code an experiment is run.
        earlier, later: commits of the nights before the change and of its first; None where not known.
    """

    name: str
    root: Path
    is_own: bool
    earlier: str | None
    later: str | None


def code_of(regression: SeriesVerdict, case: Case) -> BisectedCode:
    """The repository that a regression is searched in."""
    before, since, own_root = regression.before, regression.since, own_checkout()
    own = BisectedCode(
        name=STRATBENCH,
        root=own_root,
        is_own=True,
        earlier=before.git_sha if before else None,
        later=since.git_sha if since else None,
    )
    root = checkout_of(case.workload.file) if case.workload.file else None
    if root is None or root == own_root or before is None or since is None:
        return own
    workload = regression.series.subject.workload
    earlier, later = (workload_commit(night, workload) for night in (before, since))
    code = BisectedCode(
        name=root.name,
        root=root,
        is_own=False,
        earlier=earlier[1].git_sha if earlier else None,
        later=later[1].git_sha if later else None,
    )
    # Where the user's code is the same, or nobody knows, stratbench's may have changed.
    is_unchanged = code.earlier == code.later or None in (code.earlier, code.later)
    return own if is_unchanged and own.earlier != own.later else code


def regression_of(store: Path, experiment: str, case: str, *, confirm: int) -> SeriesVerdict:
    """The confirmed regression of a case in the last night of an experiment.

    Args:
        case: its id, a strategy, or workload and strategy.
    Raises:
        UsageError: it has not regressed, in nothing that a run shows again, or several cases are meant.
    """
    with reading(store) as history:
        nights = [night for night in history.nights() if night.experiment == experiment]
        if not nights:
            raise UsageError(
                f"needs nights of {experiment} in {store}, got {holdings(history)}; name an experiment "
                f"that it holds, or add nights by `stratbench nightly {experiment} --store {store}`",
                field="bisect",
            )
        verdict = verdict_of(history, nights[-1], confirm=confirm)
    worse = [each for each in verdict.series if each.state in ("regressed", "known")]
    of_case = [each for each in worse if case in names_of(each.series.subject)]
    if not of_case:
        names = sorted({name for each in worse for name in names_of(each.series.subject)})
        hint = suggestion(case, names) if names else "nothing has"
        raise UsageError(
            f"must be a case that has regressed by {nights[-1].name}, got {case!r}; {hint}", field="bisect"
        )
    ids = sorted({each.series.subject.case for each in of_case})
    if len(ids) > 1:
        raise UsageError(f"must be one case, got {len(ids)} of {case!r}: {', '.join(ids)}", field="bisect")
    by_metric = {each.series.subject.metric: each for each in of_case}
    metric = next((name for name in _METRICS if name in by_metric), None)
    if metric is None:
        raise UsageError(
            f"must be slower, for runs to be compared, got what regressed in {', '.join(by_metric)}; "
            "`stratbench run` at one commit shows it",
            field="bisect",
        )
    return by_metric[metric]


def commits_of(code: BisectedCode, checkout: Checkout) -> tuple[Commit, ...]:
    """Commits from the night before a regression to the first one with it.

    Raises:
        UsageError: these are not known, or one and the same. And as `Checkout.commits_in_a_row`.
    """
    if not code.earlier or not code.later:
        raise UsageError(
            f"needs nights whose commit of {code.name} is known, got one without", field="bisect"
        )
    if code.earlier == code.later:
        raise UsageError(
            f"needs nights of different commits, got {code.earlier[:10]} of {code.name} for both: it is not "
            "the code, or what was not committed",
            field="bisect",
        )
    return checkout.commits_in_a_row(code.earlier, code.later)


def bisected(
    regression: SeriesVerdict, code: BisectedCode, commits: Sequence[Commit], run_at: RunAt
) -> Answer:
    """Say which commit a regression came with, by runs at some of the commits.

    Args:
        code: whose commits these are.
        commits: from the last night before it to its first, the oldest first.
    Raises:
        CaseError: the ends do not run, or cannot be told apart here and now.
    """
    subject = regression.series.subject
    trials = Trials(
        commits=commits,
        run_at=run_at,
        strategy=subject.strategy,
        by_rates=subject.metric == RATE.name,
        of_workload=not code.is_own,
    )
    name = series_name(regression)
    try:
        halfway = _halfway(trials, name)
    except OutOfTimeError:
        raise CaseError(
            "out-of-time", "time was up before both ends had run; give --time-budget more", stage="run"
        ) from None
    result = narrowed(len(commits), lambda index: trials.look(index, halfway))
    factor, _ = trials.between(result.last_good, result.first_known_bad)
    first = commits[result.first_known_bad] if len(result.suspects) == 1 else None
    lines = _lines(trials, result, name, factor, code.name)
    interval = factor.interval if factor else None
    document = {
        "case": subject.case,
        "metric": subject.metric,
        "verdict": lines[0],
        "repository": code.name,
        "first_bad": None if first is None else {"commit": first.sha, "subject": first.subject},
        "suspects": [commits[index].sha for index in result.suspects],
        "ratio": factor.value if factor else None,
        "interval": {"low": interval.low, "high": interval.high} if interval else None,
        "runs": len(trials.runs),
        "skipped": [{"commit": each.commit.sha, "why": each.why} for each in trials.skipped],
    }
    status = EXIT_OK if first is not None else EXIT_CASE
    return answer_in_lines(lines, document=document, exit_status=status)


def _halfway(trials: Trials, name: str) -> float:
    """Logarithm of half the change between the ends, which are run first."""
    last = len(trials.commits) - 1
    for index in (0, last):
        why = trials.why_no_result(index) if trials.measure(index) else trials.skipped[-1].why
        if why:
            raise CaseError(
                "end-does-not-run",
                f"{trials.commits[index]} must run, as an end of the search, got: {why}; make it run "
                "here, as `stratbench run` at that commit shows",
                stage="run",
            )
    factor, why = trials.between(0, last)
    if factor is None or factor.interval is None or factor.interval.high >= 1:
        ends = f"{trials.commits[0].sha[:10]} and {trials.commits[last].sha[:10]}"
        got = factor_text(factor) if factor and factor.interval else why
        raise CaseError(
            "ends-alike",
            f"{name} must be slower at the later of {ends} here and now, got {got}; it is not the code, or "
            "`--set measure.repeats=N` with more repeats tells them apart",
            stage="run",
        )
    return math.log(factor.value) / 2


def _lines(trials: Trials, result: Narrowed, name: str, factor: Factor | None, repository: str) -> list[str]:
    commits = trials.commits
    suspects = [commits[index] for index in result.suspects]
    before = f"against {commits[result.last_good]}"
    if len(suspects) == 1:
        head = f"first bad commit of {repository}: {suspects[0]}: {name} {factor_text(factor)} {before}"
    else:
        why = "time was up" if result.is_cut_short else "those between tell nothing"
        head = (
            f"one of {len(suspects)} commits of {repository}, as {why}: {name} {factor_text(factor)} {before}"
        )
    lines = [head]
    lines += [f"  {commit}" for commit in suspects] if len(suspects) > 1 else []
    lines += [f"skipped: {each.commit}: {each.why}" for each in trials.skipped]
    return [*lines, f"runs at {len(trials.runs)} of {len(commits)} commits"]
