"""The commit that a regression came with: runs at commits between two nights, and what they show."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import harness
from harness.atomic_files import write_json
from harness.bisection.checkout import Checkout, Commit
from harness.bisection.commit_run import CommitRuns
from harness.bisection.search import Narrowed, OutOfTimeError, narrowed
from harness.bisection.single_case import single_case
from harness.cli.answer import Answer
from harness.cli.nightly.answer_in_lines import answer_in_lines
from harness.cli.nightly.trials import RunAt, Trials, factor_text
from harness.cli.nightly.which_night import holdings
from harness.errors import EXIT_CASE, EXIT_OK, CaseError, UsageError
from harness.experiment.cases import expand
from harness.experiment.document import spec_document
from harness.experiment.spec import ExperimentSpec
from harness.provision.temporary.reaper import run_folder
from reports.changes.changes import Factor
from reports.history.figures import RATE, RATIO
from reports.history.store import reading
from reports.history.verdicts import SeriesVerdict, names_of, verdict_of
from reports.history.wording import series_name
from strategies.errors import suggestion

_METRICS = (RATIO.name, RATE.name)


def bisect(
    store: Path,
    spec: ExperimentSpec,
    case: str,
    *,
    confirm: int,
    budget_s: float | None,
    run_options: Sequence[str],
    environ: Mapping[str, str],
) -> Answer:
    """Run a case that has regressed by the code of commits, and say which one it came with.

    Args:
        case: as for `regression_of`.
        budget_s: for all runs together; None for as long as it takes.
        run_options: of `stratbench run`, for each of them. environ: of this process.
    Raises:
        UsageError: there is no such regression, or its commits are not here. CaseError: as `bisected`.
    """
    regression = regression_of(store, spec.name, case, confirm=confirm)
    root = checkout_root()
    commits = commits_of(regression, Checkout(root=root, environ=environ))
    cases = {each.id: each for each in expand(spec)}
    case_id = regression.series.subject.case
    if case_id not in cases:
        raise UsageError(f"must be a case of the experiment, got {case_id}, which it has not", field="bisect")
    until_s = None if budget_s is None else time.monotonic() + budget_s
    with run_folder() as folder:
        document = spec_document(single_case(spec, cases[case_id]))
        runs = CommitRuns(
            root=root,
            folder=folder,
            experiment=write_json(folder / "experiment.yaml", document),
            options=tuple(run_options),
            environ=environ,
            until_s=until_s,
        )
        return bisected(regression, commits, runs.run)


def checkout_root() -> Path:
    """The folder that this code is in, which may be a git checkout."""
    return Path(harness.__file__).resolve().parents[1]


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


def commits_of(regression: SeriesVerdict, checkout: Checkout) -> tuple[Commit, ...]:
    """Commits from the night before a regression to the first one with it.

    Raises:
        UsageError: these are not known, or one and the same. And as `Checkout.commits_in_a_row`.
    """
    earlier = regression.before.git_sha if regression.before else None
    later = regression.since.git_sha if regression.since else None
    if not earlier or not later:
        raise UsageError("needs nights whose commit is known, got one without", field="bisect")
    if earlier == later:
        raise UsageError(
            f"needs nights of different commits, got {earlier[:10]} for both: it is not the code, or what "
            "was not committed",
            field="bisect",
        )
    return checkout.commits_in_a_row(earlier, later)


def bisected(regression: SeriesVerdict, commits: Sequence[Commit], run_at: RunAt) -> Answer:
    """Say which commit a regression came with, by runs at some of the commits.

    Args:
        commits: from the last night before it to its first, the oldest first.
    Raises:
        CaseError: the ends do not run, or cannot be told apart here and now.
    """
    subject = regression.series.subject
    trials = Trials(
        commits=commits, run_at=run_at, strategy=subject.strategy, by_rates=subject.metric == RATE.name
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
    lines = _lines(trials, result, name, factor)
    interval = factor.interval if factor else None
    document = {
        "case": subject.case,
        "metric": subject.metric,
        "verdict": lines[0],
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


def _lines(trials: Trials, result: Narrowed, name: str, factor: Factor | None) -> list[str]:
    commits = trials.commits
    suspects = [commits[index] for index in result.suspects]
    before = f"against {commits[result.last_good]}"
    if len(suspects) == 1:
        head = f"first bad commit: {suspects[0]}: {name} {factor_text(factor)} {before}"
    else:
        why = "time was up" if result.is_cut_short else "those between tell nothing"
        head = f"one of {len(suspects)} commits, as {why}: {name} {factor_text(factor)} {before}"
    lines = [head]
    lines += [f"  {commit}" for commit in suspects] if len(suspects) > 1 else []
    lines += [f"skipped: {each.commit}: {each.why}" for each in trials.skipped]
    return [*lines, f"runs at {len(trials.runs)} of {len(commits)} commits"]
