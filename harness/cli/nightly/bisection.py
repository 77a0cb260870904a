"""Search for the commit of a regression: `git bisect` with comparisons of runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.atomic_files import write_json
from harness.cli import output
from harness.cli.nightly.checkout import Checkout, Commit, Judgement
from harness.cli.nightly.commit_runs import CommitRuns, OutOfTimeError, placed_in, single_case
from harness.cli.nightly.publishing import nights_of
from harness.cli.options import HistoryOptions
from harness.cli.output import Answer, answer_in_lines
from harness.errors import EXIT_CASE, EXIT_OK, CaseError, StoreError, UsageError
from harness.experiment.cases import Case, expand
from harness.experiment.model import Experiment
from harness.host_facts import checkout_of, own_checkout
from harness.provision.temporary_folder import run_folder
from harness.records.comparison import MIN_REPEATS_INTERVAL
from harness.records.conditions import short_hash
from reports.changes.changes import ByRate, Factor, changes_between
from reports.history.figures import RATE, RATIO
from reports.history.store import reading
from reports.history.verdict_text import STRATBENCH, series_name, workload_commit
from reports.history.verdicts import SeriesVerdict, names_of, verdict_of
from reports.load import Run, load
from reports.quantities import limits, times
from strategies.errors import suggestion

_METRICS = (RATIO.name, RATE.name)


def bisect(
    history_options: HistoryOptions,
    spec: Experiment,
    case: str,
    *,
    budget_s: float | None,
    run_options: Sequence[str],
    environ: Mapping[str, str],
) -> Answer:
    """Run a regressed case with the code of several commits, and report the commit of the regression.

    The commits are those of the repository with the workload's file. For a shipped workload, or an unchanged
    repository, they are stratbench's own.

    Args:
        case: id, strategy, or workload and strategy of the case.
        budget_s: time limit of all runs together; None for no limit.
        run_options: options of `stratbench run`, for each of them. environ: environment of this process.
    Raises:
        UsageError: there is no such regression, or its commits are missing here.
        CaseError: the first or the last commit does not run, or the two do not differ here.
    """
    regression = regression_of(history_options.store, spec.name, case, confirm=history_options.confirm)
    subject = regression.series.subject
    regressed = _case_of(spec, subject.case)
    code = code_of(regression, regressed)
    checkout = Checkout(root=code.root, environ=environ)
    commits = code.commits(checkout)
    output.warn(f"bisecting {code.name} in {code.root}: {len(commits)} commits")
    if spec.measure.repeats < MIN_REPEATS_INTERVAL:
        output.warn(
            f"measuring {MIN_REPEATS_INTERVAL} repeats at each commit, not {spec.measure.repeats}: fewer "
            "have no interval"
        )
    search = Search(
        commits=commits,
        name=series_name(regression),
        strategy=subject.strategy,
        by_rates=subject.metric == RATE.name,
        of_workload=not code.is_own,
    )
    until_s = None if budget_s is None else time.monotonic() + budget_s
    with run_folder() as folder, checkout.worktree(commits[0], folder) as worktree:
        placed = placed_in(code.root, single_case(spec, regressed), working_directory=Path.cwd())
        runs = CommitRuns(
            root=code.root,
            worktree=worktree,
            is_own=code.is_own,
            start=placed.start,
            folder=folder,
            experiment=write_json(folder / "experiment.yaml", placed.spec.to_document()),
            options=tuple(run_options),
            environ=environ,
            until_s=until_s,
        )
        search.carry_out(worktree, runs.run)
    return search.answer(code.name, case=subject.case, metric=subject.metric)


def _case_of(spec: Experiment, name: str) -> Case:
    case = next((item for item in expand(spec) if item.id == name), None)
    if case is None:
        raise UsageError(
            f"must be a case of the experiment, got {name}; drop the --set options that remove it",
            field="bisect",
        )
    return case


def regression_of(store: Path, experiment: str, case: str, *, confirm: int) -> SeriesVerdict:
    """Confirmed regression of a case in the last night of an experiment.

    Raises:
        UsageError: it has not regressed in its ratio or rate, or several cases have the name.
    """
    with reading(store) as history:
        newest = nights_of(history, experiment, field="bisect")[-1]
        verdict = verdict_of(history, newest, confirm=confirm)
    worse = [series for series in verdict.series if series.state in ("regressed", "known")]
    of_case = [item for item in worse if case in names_of(item.series.subject)]
    if not of_case:
        names = sorted({name for item in worse for name in names_of(item.series.subject)})
        hint = suggestion(case, names) if names else "no case has regressed"
        raise UsageError(
            f"must be a case that has regressed by {newest.name}, got {case!r}; {hint}", field="bisect"
        )
    ids = sorted({item.series.subject.case for item in of_case})
    if len(ids) > 1:
        raise UsageError(
            f"must be one case, got {len(ids)} of {case!r}; give one of {', '.join(ids)}", field="bisect"
        )
    by_metric = {item.series.subject.metric: item for item in of_case}
    metric = next((name for name in _METRICS if name in by_metric), None)
    if metric is None:
        raise UsageError(
            f"must have become slower, got a regression in {', '.join(by_metric)} only; its commits are "
            "listed by `stratbench nightly replay`",
            field="bisect",
        )
    return by_metric[metric]


@dataclass(frozen=True, kw_only=True, slots=True)
class BisectedCode:
    """Repository whose commits are searched.

    Attributes:
        is_own: True for stratbench's repository, whose code runs the experiment.
        earlier, later: commits of the night before the change and of its first night; None if unknown.
    """

    name: str
    root: Path
    is_own: bool
    earlier: str | None
    later: str | None

    def commits(self, checkout: Checkout) -> tuple[Commit, ...]:
        """Commits from the night before a regression to the first one with it.

        Raises:
            UsageError: these are unknown, or the same; or see `Checkout.commits_in_a_row`.
        """
        if not self.earlier or not self.later:
            raise UsageError(
                f"needs nights with a known commit of {self.name}, got one without; run nights from a git "
                "checkout",
                field="bisect",
            )
        if self.earlier == self.later:
            raise UsageError(
                f"needs nights of different commits, got {short_hash(self.earlier)} of {self.name} for both: "
                "the cause is not committed code, or a small change is dated a night early or late; compare "
                "runs of the neighbouring nights with `stratbench compare`",
                field="bisect",
            )
        return checkout.commits_in_a_row(self.earlier, self.later)


def code_of(regression: SeriesVerdict, case: Case) -> BisectedCode:
    """Repository in which a regression is searched."""
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
    # If the user's code is unchanged, or unknown, stratbench's may have changed.
    is_unchanged = code.earlier == code.later or None in (code.earlier, code.later)
    return own if is_unchanged and own.earlier != own.later else code


@dataclass(kw_only=True, slots=True)
class Search:
    """Runs at commits so far, and their results.

    Attributes:
        commits: commits from the last night before the regression to its first one, oldest first.
        name: name of the series. strategy: strategy of the case.
        by_rates: True to judge by the case's rate, not by its ratio to the baseline.
        of_workload: True for commits of the workload's repository, not of stratbench's.
        runs: index of a commit → its run. skipped: commit → reason why its run is inconclusive.
        last_good, first_bad: indices of the closest two judged commits.
        halfway: logarithm of the factor against the first commit, halfway between both ends.
    """

    commits: Sequence[Commit]
    name: str
    strategy: str
    by_rates: bool
    of_workload: bool = False
    runs: dict[int, Run] = field(default_factory=dict)
    skipped: dict[Commit, str] = field(default_factory=dict)
    last_good: int = 0
    first_bad: int = field(init=False)
    run_at: Callable[[Commit], Path] = field(init=False)
    halfway: float = 0.0
    is_cut_short: bool = False

    def __post_init__(self) -> None:
        self.first_bad = len(self.commits) - 1

    def carry_out(self, worktree: Checkout, run_at: Callable[[Commit], Path]) -> None:
        """Run the ends, then the commits that `git bisect` chooses in a worktree.

        Args:
            run_at: function that runs the experiment by the code of a commit and returns the run folder.
        Raises:
            CaseError: see `_measure_ends`.
        """
        self.run_at = run_at
        self._measure_ends()
        if len(self.commits) > 2:
            worktree.bisect(self.commits[0], self.commits[-1], self.judge)

    def _measure_ends(self) -> None:
        """Run the first and the last commit.

        Raises:
            CaseError: one of them does not run, or they do not differ.
        """
        last = len(self.commits) - 1
        try:
            for index in (0, last):
                self._require_result(index)
        except OutOfTimeError:
            raise CaseError(
                "out-of-time", "time was up before both ends had run; raise --time-budget", stage="run"
            ) from None
        factor, why = self._between(0, last)
        if factor is None or factor.interval is None or factor.interval.high >= 1:
            ends = f"{short_hash(self.commits[0].sha)} and {short_hash(self.commits[last].sha)}"
            got = _factor_text(factor) if factor and factor.interval else why
            raise CaseError(
                "ends-alike",
                f"{self.name} must be slower at the later of {ends} on this machine, got {got}; the cause is "
                "not the code, or more repeats are needed: `--set measure.repeats=N`",
                stage="run",
            )
        self.halfway = math.log(factor.value) / 2

    def judge(self, sha: str) -> Judgement | None:
        """Run a commit and compare it with the first; None if time is up."""
        index = next(i for i, commit in enumerate(self.commits) if commit.sha == sha)
        try:
            why = self._measured(index)
        except OutOfTimeError:
            self.is_cut_short = True
            return None
        if not why:
            factor, why = self._between(0, index)
            if factor is not None and factor.interval is not None:
                if math.log(factor.interval.low) > self.halfway:
                    self.last_good = index
                    return "good"
                if math.log(factor.interval.high) < self.halfway:
                    self.first_bad = index
                    return "bad"
                why = f"{_factor_text(factor)} compared with the first commit decides nothing"
        output.warn(f"skipped {self.commits[index]}: {why}")
        self.skipped[self.commits[index]] = why
        return "skip"

    def answer(self, repository: str, *, case: str, metric: str) -> Answer:
        """First bad commit, or the commits that include it."""
        suspects = self.commits[self.last_good + 1 : self.first_bad + 1]
        factor, _ = self._between(self.last_good, self.first_bad)
        interval = factor.interval if factor else None
        first = suspects[0] if len(suspects) == 1 else None
        change = f"{self.name} {_factor_text(factor)} against {self.commits[self.last_good]}"
        why = "time was up" if self.is_cut_short else "the commits between give no result"
        verdict = (
            f"first bad commit of {repository}: {first}: {change}"
            if first
            else f"one of {len(suspects)} commits of {repository}, as {why}: {change}"
        )
        lines = [
            verdict,
            *(f"  {commit}" for commit in suspects if first is None),
            *(f"skipped: {commit}: {reason}" for commit, reason in self.skipped.items()),
            f"runs at {len(self.runs)} of {len(self.commits)} commits",
        ]
        document = {
            "case": case,
            "metric": metric,
            "verdict": verdict,
            "repository": repository,
            "first_bad": {"commit": first.sha, "subject": first.subject} if first else None,
            "suspects": [commit.sha for commit in suspects],
            "ratio": factor.value if factor else None,
            "interval": {"low": interval.low, "high": interval.high} if interval else None,
            "runs": len(self.runs),
            "skipped": [{"commit": commit.sha, "why": reason} for commit, reason in self.skipped.items()],
        }
        return answer_in_lines(lines, document, EXIT_OK if first else EXIT_CASE)

    def _require_result(self, index: int) -> None:
        why = self._measured(index)
        if not why:
            factor, why_unknown = self._between(index, index)
            why = why_unknown if factor is None else ""
        if why:
            raise CaseError(
                "end-does-not-run",
                f"{self.commits[index]} must run, because the search ends there, got: {why}; make "
                "`stratbench run` work at that commit",
                stage="run",
            )

    def _measured(self, index: int) -> str:
        """Run a commit; return the reason if the run has no result to compare."""
        commit = self.commits[index]
        output.warn(f"running {commit}")
        try:
            run = load(self.run_at(commit))
        except (CaseError, StoreError, UsageError) as error:
            return error.message
        provenances = [record.provenance for record in run.records if record.provenance]
        codes = [provenance.workload if self.of_workload else provenance for provenance in provenances]
        others = {code.git_sha for code in codes if code is not None} - {None, commit.sha}
        if others:
            return f"other code ran: commit {', '.join(map(str, others))}"
        self.runs[index] = run
        return ""

    def _between(self, earlier: int, later: int) -> tuple[Factor | None, str]:
        """Factor of the case's figure between two runs; None with the reason if unknown."""
        changes = changes_between(
            self.runs[earlier], self.runs[later], threshold=0.0, by_rates=self.by_rates, anyway=True
        )
        change = next((case for case in changes.cases if case.strategy == self.strategy), None)
        if change is None:
            return None, "the case is in neither run"
        # A rate in place of a ratio would depend on the machine's load at the time.
        if change.factor is not None and isinstance(change.judged_by, ByRate) and not self.by_rates:
            return None, "the case has no rounds with the baseline, so no ratio to it"
        return change.factor, change.why


def _factor_text(factor: Factor | None) -> str:
    if factor is None:
        return "not known"
    return f"{times(factor.value)} [{limits(factor.interval)}]" if factor.interval else times(factor.value)
