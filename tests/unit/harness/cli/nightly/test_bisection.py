"""`stratbench nightly bisect` in a small repository, with runs that are made up."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from git_repository import Repository
from synthetic_run import DIED, Case, write_run

from harness.cli import main
from harness.cli.nightly import commit_runs as run_command
from harness.cli.nightly.commit_runs import Commit, CommitRuns, OutOfTimeError
from harness.errors import CaseError
from harness.experiment.cases import expand
from harness.experiment.load import load_experiment
from harness.host_facts import own_checkout, repository_of
from harness.records import conditions as facts
from reports.history.figures import Figure, NewNight, Subject
from reports.history.store import writing

BEGAN = datetime(2026, 1, 5, 2, tzinfo=UTC)
N_COMMITS, FIRST_BAD = 12, 7
CASE = next(
    case
    for case in expand(load_experiment("quickstart"))
    if (case.workload_name, case.strategy.name) == ("digits-cnn", "ps")
)


EXPERIMENT = """
name: x
workloads: ["../bench/net.py:net"]
strategies: [single, ps]
cluster: {workers: 2}
"""


class Bisection:
    """A history whose `ps` has become slower, and the effects of its commits.

    Attributes:
        commits: commits, with the night before first, and the first slow night last.
        asked: numbers of the commits that were run.
        problems: number of a commit → reason why it does not run; OutOfTimeError for None.
        failing: numbers of commits that run, but at which the case has no result.
        without_baseline: numbers of commits at which the baseline has no result.
    """

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
        self.store, self.capsys = folder / "store", capsys
        self.repository = Repository(folder / "checkout")
        self.commits = [self.repository.commit(f"change {number}") for number in range(N_COMMITS)]
        self.asked: list[int] = []
        self.problems: Mapping[int, str | None] = {}
        self.slower, self.slows_all, self.n_repeats = 1.25, False, 6
        self.failing: set[int] = set()
        self.without_baseline: set[int] = set()
        self.experiments: list[dict[str, Any]] = []
        monkeypatch.setattr("harness.cli.nightly.bisection.own_checkout", lambda: self.repository.root)

        def run(runs: CommitRuns, commit: Commit) -> Path:
            return self.run(runs, commit)

        monkeypatch.setattr(CommitRuns, "run", run)

    def nights(self, *, metrics: Sequence[str] = ("rate", "ratio"), later: int = N_COMMITS - 1) -> None:
        """Twelve nights as ever, and three slow ones."""
        rng = np.random.default_rng(3)
        with writing(self.store) as history:
            for number in range(15):
                is_slow = number >= 12
                figures = [
                    Figure(
                        subject=Subject(
                            case=CASE.id,
                            workload="digits-cnn",
                            shape="2 workers",
                            strategy="ps",
                            comparison_key="k",
                            lock_hash="l",
                            metric=metric,
                            against="single" if metric == "ratio" else "",
                        ),
                        value=float(np.exp(rng.normal(0, 0.01)))
                        * ((1.25 if metric == "payload_bytes" else 0.8) if is_slow else 1.0),
                        error=0.01,
                        n=4,
                    )
                    for metric in metrics
                ]
                history.add(
                    NewNight(
                        figures=figures,
                        lost=(),
                        started_utc=(BEGAN + timedelta(days=number)).isoformat(),
                        experiment="quickstart",
                        run=f"run-{number}",
                        run_dir="",
                        git_sha=self.commits[later if is_slow else 0],
                    )
                )

    def run(self, runs: CommitRuns, commit: Commit) -> Path:
        number = self.commits.index(commit.sha)
        self.asked.append(number)
        self.experiments.append(json.loads(runs.experiment.read_text()))
        if number in self.problems:
            why = self.problems[number]
            raise OutOfTimeError if why is None else CaseError("commit-does-not-run", why, stage="run")
        slower = self.slower if number >= FIRST_BAD else 1.0
        single_s = 0.05 * (slower if self.slows_all else 1.0)
        died = dict.fromkeys(range(self.n_repeats), ("failed", DIED))
        case = Case(workload="digits-cnn", strategy="ps", traced=False, git_sha=commit.sha)
        cases = [
            replace(
                case,
                strategy="single",
                p50_s=single_s,
                problems=died if number in self.without_baseline else {},
            ),
            replace(case, p50_s=0.04 * slower, problems=died if number in self.failing else {}),
        ]
        out = runs.folder / "runs" / str(number)
        return write_run(out, cases, seed=number, minutes=(1.0, 1.05), n_repeats=self.n_repeats)

    def output(self, *arguments: str, case: str = "ps") -> tuple[int, dict[str, Any]]:
        command = ["nightly", "bisect", "quickstart", "--store", str(self.store), case, "--json", *arguments]
        status = main(command)
        return status, json.loads(self.capsys.readouterr().out)


class UsersRepository:
    """A repository with a user's workload that got slower, beside stratbench's own, which stays the same."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.repository = Repository(folder / "models")
        self.commits = [
            self.repository.commit(
                f"units {number}", {"bench/net.py": f"UNITS = {number}", "run/x.yaml": EXPERIMENT}
            )
            for number in range(N_COMMITS)
        ]
        self.store = folder / "store"
        self.own = "a" * 40
        self.asked: list[tuple[int, str]] = []
        monkeypatch.chdir(self.repository.root / "run")
        monkeypatch.setattr(run_command, "run_stratbench", self.run)

    def nights(self, *, later: int = N_COMMITS - 1, own_later: str = "a" * 40, known: bool = True) -> None:
        spec = load_experiment("x.yaml")
        case = next(case for case in expand(spec) if case.strategy.name == "ps")
        rng = np.random.default_rng(3)
        with writing(self.store) as history:
            for number in range(15):
                is_slow = number >= 12
                subject = Subject(
                    case=case.id,
                    workload="../bench/net.py:net",
                    shape="2 workers",
                    strategy="ps",
                    comparison_key="k",
                    lock_hash="l",
                    metric="ratio",
                    against="single",
                )
                value = float(np.exp(rng.normal(0, 0.01))) * (0.8 if is_slow else 1.0)
                commit = facts.Repository(name="models", git_sha=self.commits[later if is_slow else 0])
                history.add(
                    NewNight(
                        figures=[Figure(subject=subject, value=value, error=0.01, n=4)],
                        lost=(),
                        started_utc=(BEGAN + timedelta(days=number)).isoformat(),
                        experiment="x",
                        run=f"run-{number}",
                        run_dir="",
                        git_sha=own_later if is_slow else self.own,
                        workload_commits={"../bench/net.py:net": commit} if known else {},
                    )
                )

    def run(self, arguments: Sequence[str], *, environ: Mapping[str, str], folder: Path, **_: Any) -> int:
        """Run what the experiment names, from where it is run."""
        document = json.loads(Path(arguments[1]).read_text())
        (workload,) = document["workloads"]
        file = folder / workload.rpartition(":")[0]
        units = int(file.read_text().removeprefix("UNITS = "))
        self.asked.append((units, environ["PYTHONPATH"].split(os.pathsep)[0]))
        out = Path(arguments[arguments.index("--out") + 1])
        case = Case(
            workload=workload,
            strategy="ps",
            traced=False,
            repository=repository_of(file),
            file_hash=f"{units:064x}",
            p50_s=0.05 if units >= FIRST_BAD else 0.04,
        )
        cases = [replace(case, strategy="single", p50_s=0.05), case]
        write_run(out, cases, seed=units, minutes=(1.0, 1.05), n_repeats=6)
        return 0


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UsersRepository:
    return UsersRepository(tmp_path, monkeypatch)


def bisect_users(
    users: UsersRepository, capsys: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, Any], str]:
    status = main(["nightly", "bisect", "x.yaml", "--store", str(users.store), "ps", "--json"])
    captured = capsys.readouterr()
    return status, json.loads(captured.out), captured.err


def test_the_repository_of_the_workloads_file_is_bisected_and_named(
    users: UsersRepository, capsys: pytest.CaptureFixture[str]
) -> None:
    users.nights()
    status, output, message = bisect_users(users, capsys)
    assert (status, output["repository"]) == (0, "models")
    assert output["first_bad"] == {"commit": users.commits[FIRST_BAD], "subject": f"units {FIRST_BAD}"}
    assert output["verdict"].startswith(
        f"first bad commit of models: {users.commits[FIRST_BAD][:10]} units 7: "
    )
    assert f"bisecting models in {users.repository.root}: {N_COMMITS} commits" in message
    assert [units for units, _ in users.asked][:2] == [0, N_COMMITS - 1]
    # By stratbench as it is, not by what lies in the user's repository.
    assert {path for _, path in users.asked} == {str(own_checkout())}
    assert users.repository.worktrees == 1


def test_our_own_commits_are_bisected_where_the_users_are_the_same(
    users: UsersRepository, capsys: pytest.CaptureFixture[str]
) -> None:
    users.nights(later=0, own_later="b" * 40)
    status, output, _ = bisect_users(users, capsys)
    assert status == 2
    assert (
        f"needs commit aaaaaaaaaa, which is missing in the checkout {own_checkout()}"
        in output["error"]["message"]
    )


def test_the_same_commits_of_both_are_told_with_their_repository(
    users: UsersRepository, capsys: pytest.CaptureFixture[str]
) -> None:
    users.nights(later=0)
    status, output, _ = bisect_users(users, capsys)
    assert status == 2
    assert f"got {users.commits[0][:10]} of models for both" in output["error"]["message"]


def test_nights_without_the_users_commit_are_refused_by_name(
    users: UsersRepository, capsys: pytest.CaptureFixture[str]
) -> None:
    users.nights(known=False)
    status, output, _ = bisect_users(users, capsys)
    assert status == 2
    assert "needs nights with a known commit of models" in output["error"]["message"]


def test_commits_of_both_repositories_are_named_in_the_night(
    users: UsersRepository, capsys: pytest.CaptureFixture[str]
) -> None:
    users.nights(later=2)
    assert main(["nightly", "replay", "x.yaml", "--store", str(users.store), "2026-01-19", "--json"]) == 4
    document = json.loads(capsys.readouterr().out)
    assert document["code"] == ["stratbench aaaaaaaaaa", f"models {users.commits[2][:10]}"]
    (regression,) = document["regressions"]
    short = [users.repository.git("rev-parse", "--short", users.commits[number]) for number in (2, 1)]
    assert regression["commits"] == [f"models {short[0]} units 2", f"models {short[1]} units 1"]
    assert f"models {users.commits[2][:10]}" in (users.store / "trend.html").read_text()
    main(["nightly", "replay", "x.yaml", "--store", str(users.store), "2026-01-19"])
    assert f"code: stratbench aaaaaaaaaa, models {users.commits[2][:10]}" in capsys.readouterr().out


@pytest.fixture
def bisection(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Bisection:
    return Bisection(tmp_path, capsys, monkeypatch)


@pytest.mark.parametrize("metrics", [("rate", "ratio"), ("rate",)])
def test_the_commit_that_brought_it_is_named_with_its_ratio(
    bisection: Bisection, metrics: Sequence[str]
) -> None:
    bisection.nights(metrics=metrics)
    # What has no ratio is judged by its rate, although here all cases have got slower alike.
    bisection.slows_all = metrics == ("rate",)
    status, output = bisection.output()
    assert status == 0
    assert output["first_bad"] == {"commit": bisection.commits[FIRST_BAD], "subject": f"change {FIRST_BAD}"}
    assert output["interval"]["low"] < 1 / 1.25 < output["interval"]["high"] < 1
    assert output["ratio"] == pytest.approx(1 / 1.25, rel=0.05)
    assert output["metric"] == metrics[-1]
    assert bisection.asked[:2] == [0, N_COMMITS - 1]
    assert len(bisection.asked) == output["runs"] <= 6
    # No more is run than the case and its baseline.
    for experiment in bisection.experiments:
        (workload,) = experiment["workloads"]
        assert workload["name"] == "digits-cnn"
        assert experiment["strategies"] == ["single", "ps"]
    with writing(bisection.store) as history:
        assert len(history.nights()) == 15


def test_commits_that_do_not_run_are_passed_over_and_told(bisection: Bisection) -> None:
    bisection.nights()
    bisection.problems = {FIRST_BAD: "it does not start", FIRST_BAD - 1: "nor does this"}
    status, output = bisection.output()
    assert status == 1
    assert output["first_bad"] is None
    assert output["suspects"] == bisection.commits[FIRST_BAD - 1 : FIRST_BAD + 2]
    assert {skipped["commit"]: skipped["why"] for skipped in output["skipped"]} == {
        bisection.commits[FIRST_BAD]: "it does not start",
        bisection.commits[FIRST_BAD - 1]: "nor does this",
    }


def test_ends_that_are_alike_here_and_now_end_the_search(bisection: Bisection) -> None:
    bisection.nights()
    bisection.slower = 1.0
    status, output = bisection.output()
    assert (status, output["error"]["type"]) == (1, "ends-alike")
    assert "on this machine" in output["error"]["message"]
    assert bisection.asked == [0, N_COMMITS - 1]


@pytest.mark.parametrize(("end", "ends"), [(0, [0]), (N_COMMITS - 1, [0, N_COMMITS - 1])])
def test_a_case_that_fails_at_an_end_is_told_as_that(bisection: Bisection, end: int, ends: list[int]) -> None:
    bisection.nights()
    bisection.failing = {end}
    status, output = bisection.output()
    assert (status, output["error"]["type"]) == (1, "end-does-not-run")
    assert output["error"]["message"].startswith(f"{bisection.commits[end][:10]} change {end} must run")
    assert "worker 1 was killed by signal 9" in output["error"]["message"]
    assert bisection.asked == ends


def test_a_ratio_is_not_judged_by_the_rate_where_the_baseline_fails(bisection: Bisection) -> None:
    bisection.nights()
    bisection.without_baseline = {FIRST_BAD}
    status, output = bisection.output()
    assert status == 1
    assert output["suspects"] == bisection.commits[FIRST_BAD : FIRST_BAD + 2]
    (skipped,) = output["skipped"]
    assert skipped["commit"] == bisection.commits[FIRST_BAD]
    assert "no rounds with the baseline" in skipped["why"]


@pytest.mark.parametrize("end", [0, N_COMMITS - 1])
def test_an_end_without_a_ratio_is_told_as_that(bisection: Bisection, end: int) -> None:
    bisection.nights()
    bisection.without_baseline = {end}
    status, output = bisection.output()
    assert (status, output["error"]["type"]) == (1, "end-does-not-run")
    assert "no rounds with the baseline" in output["error"]["message"]


def test_a_rate_is_judged_without_a_baseline(bisection: Bisection) -> None:
    bisection.nights(metrics=("rate",))
    bisection.without_baseline = {FIRST_BAD}
    status, output = bisection.output()
    assert status == 0
    assert output["first_bad"]["commit"] == bisection.commits[FIRST_BAD]


def test_too_few_repeats_for_an_interval_tell_nothing(bisection: Bisection) -> None:
    bisection.nights()
    bisection.n_repeats = 2
    status, output = bisection.output()
    assert (status, output["error"]["type"]) == (1, "ends-alike")
    assert "both runs need 3 repeats" in output["error"]["message"]


def test_repeats_are_raised_to_those_of_an_interval_with_a_note(bisection: Bisection) -> None:
    bisection.nights()
    for repeats, expected in ((1, 3), (7, 7)):
        bisection.experiments.clear()
        command = ["nightly", "bisect", "quickstart", "--store", str(bisection.store), "ps"]
        assert main([*command, "--set", f"measure.repeats={repeats}"]) == 0
        assert {experiment["measure"]["repeats"] for experiment in bisection.experiments} == {expected}
        note = "measuring 3 repeats at each commit, not 1"
        assert (note in bisection.capsys.readouterr().err) == (repeats == 1)


def test_time_that_is_up_leaves_the_commits_that_are_left(bisection: Bisection) -> None:
    bisection.nights()
    # Of eleven, the middle is good, and then there is no time left.
    bisection.problems = {8: None}
    status, output = bisection.output()
    assert status == 1
    assert bisection.asked == [0, 11, 5, 8]
    assert output["suspects"] == bisection.commits[6:]
    assert "time was up" in output["verdict"]
    bisection.problems = {11: None}
    status, output = bisection.output()
    assert (status, output["error"]["type"]) == (1, "out-of-time")


def test_code_of_another_commit_is_not_taken_for_it(
    bisection: Bisection, monkeypatch: pytest.MonkeyPatch
) -> None:
    bisection.nights()

    def run(runs: CommitRuns, _commit: Commit) -> Path:
        cases = [Case(workload="digits-cnn", strategy=name) for name in ("single", "ps")]
        return write_run(runs.folder / "runs" / "x", cases)

    monkeypatch.setattr(CommitRuns, "run", run)
    status, output = bisection.output()
    assert (status, output["error"]["type"]) == (1, "end-does-not-run")
    assert "other code ran: commit 0123456789abcdef" in output["error"]["message"]


def test_what_cannot_be_searched_for_is_refused(bisection: Bisection) -> None:
    assert "must hold a history" in bisection.output()[1]["error"]["message"]
    bisection.nights()
    for arguments, case, expected in (
        ((), "sharded", "must be a case that has regressed by 2026-01-19, got 'sharded'"),
        (("--prometheus", "x.prom"), "ps", "No such option: --prometheus"),
        (("--set", "strategies=[single, none]"), "ps", "must be a case of the experiment"),
    ):
        status, output = bisection.output(*arguments, case=case)
        assert status == 2
        assert expected in output["error"]["message"]
    assert bisection.asked == []


@pytest.mark.parametrize(
    ("metrics", "later", "expected"),
    [
        (("payload_bytes",), N_COMMITS - 1, "got a regression in payload_bytes only; its commits"),
        (("ratio",), 0, "needs nights of different commits"),
    ],
)
def test_a_regression_without_commits_to_run_is_refused(
    bisection: Bisection, metrics: Sequence[str], later: int, expected: str
) -> None:
    bisection.nights(metrics=metrics, later=later)
    status, output = bisection.output()
    assert status == 2
    assert expected in output["error"]["message"]
