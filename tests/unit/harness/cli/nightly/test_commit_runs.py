"""Commits of a checkout, and runs by the code of each in a folder that goes again."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from git_repository import Repository
from waiting import eventually

import harness.cli.nightly.commit_runs
import harness.processes
from harness.cli.nightly.checkout import Checkout, Commit
from harness.cli.nightly.commit_runs import (
    CommitRuns,
    OutOfTimeError,
    placed_in,
)
from harness.errors import CaseError
from harness.experiment.load import resolve
from harness.experiment.model import Experiment

BUILDER = """
class Mine:
    name = "mine"
    strategy_class = "exact"
    params = ()

    def layout(self, step, topology, params):
        return []
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("code/nets/net.py", "code/mine.py", "elsewhere/theirs.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(BUILDER)
    return tmp_path.resolve() / "code"


def spec(workload: str, *strategies: str) -> Experiment:
    return resolve({"name": "x", "workloads": [workload], "strategies": list(strategies)})


@pytest.mark.parametrize(
    ("folder", "typed", "start", "placed"),
    [
        ("code", "nets/net.py", ".", "nets/net.py"),
        ("code/nets", "./net.py", "nets", "net.py"),
        ("code/nets", "../mine.py", "nets", "../mine.py"),
        ("elsewhere", "../code/nets/net.py", ".", "nets/net.py"),
    ],
)
def test_files_of_the_checkout_are_named_from_where_runs_start(
    root: Path, monkeypatch: pytest.MonkeyPatch, folder: str, typed: str, start: str, placed: str
) -> None:
    monkeypatch.chdir(root.parent / folder)
    for reference in (typed, str(Path(typed).resolve())):
        experiment = placed_in(root, spec(f"{reference}:net", "single"), working_directory=Path.cwd())
        assert experiment.start == Path(start)
        assert [str(workload) for workload in experiment.spec.workloads] == [f"{placed}:net"]


def test_strategies_of_the_checkout_move_with_it_and_others_stay(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    both = spec("nets/net.py:net", "mine.py:Mine", "../elsewhere/theirs.py:Mine", "ps")
    placed = placed_in(root, both, working_directory=Path.cwd()).spec
    names = ["mine.py:Mine", f"{root.parent}/elsewhere/theirs.py:Mine", "ps"]
    assert [strategy.name for strategy in placed.strategies] == names
    assert placed.baseline == placed.strategies[0]


def test_an_experiment_without_files_of_the_checkout_is_run_from_here(root: Path) -> None:
    shipped = spec("digits-cnn", "ps")
    placed = placed_in(root, shipped, working_directory=root)
    assert (placed.spec, placed.start) == (shipped, None)


COMMAND = """
import json, pathlib, sys
experiment, out = sys.argv[2], pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
out.mkdir(parents=True)
(out / "run.json").write_text(json.dumps({{"version": {version!r}, "arguments": sys.argv[1:]}}))
(out / "results.jsonl").write_text("{{}}")
"""
WAITS = """
import os, pathlib, signal, sys
ready = pathlib.Path(os.environ["READY"])
def clean_up(*_):
    ready.unlink()
    sys.exit(1)
signal.signal(signal.SIGTERM, clean_up)
ready.touch()
while True:
    signal.pause()
"""
OF_SUBPROCESS = ("DEVNULL", "TimeoutExpired")
FAILS = "import sys; sys.exit('stratbench: no such option')"
PRINTS = "import os, sys; sys.exit(f'its variables: {[name for name in os.environ if name[:4] == \"GIT_\"]}')"


def code(text: str) -> dict[str, str]:
    return {"harness/__init__.py": "", "harness/cli/__init__.py": "", "harness/cli/__main__.py": text}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "checkout")


def checkout(repository: Repository, environ: Mapping[str, str] = os.environ) -> Checkout:
    return Checkout(root=repository.root, environ=environ)


def only_commit(repository: Repository, sha: str) -> Commit:
    (commit,) = checkout(repository).commits_in_a_row(sha, sha)
    return commit


@pytest.fixture
def runs(repository: Repository, tmp_path: Path) -> Iterator[Callable[..., CommitRuns]]:
    """Runs in a worktree that is gone afterwards."""
    folder = tmp_path / "private"
    folder.mkdir()
    with ExitStack() as stack:

        def opened(until_s: float | None = None) -> CommitRuns:
            head = only_commit(repository, repository.git("rev-parse", "HEAD"))
            return CommitRuns(
                root=repository.root,
                worktree=stack.enter_context(checkout(repository).worktree(head, folder)),
                folder=folder,
                experiment=tmp_path / "x.yaml",
                options=("--no-isolation",),
                environ=os.environ,
                until_s=until_s,
            )

        yield opened


def test_variables_of_git_do_not_lead_it_elsewhere(
    runs: Callable[..., CommitRuns], repository: Repository, tmp_path: Path
) -> None:
    sha = repository.commit("prints", code(PRINTS))
    other = Repository(tmp_path / "other")
    environ = {**os.environ, "GIT_DIR": str(other.root / ".git"), "GIT_INDEX_FILE": str(tmp_path / "index")}
    (commit,) = checkout(repository, environ).commits_in_a_row(sha, sha)
    with pytest.raises(CaseError, match=r"its variables: \[\]"):
        replace(runs(), environ=environ).run(commit)
    assert other.worktrees == 1


def test_a_run_is_by_the_code_of_its_commit_alone(
    runs: Callable[..., CommitRuns], repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = repository.commit("old", code(COMMAND.format(version="old")))
    new = repository.commit("new", code(COMMAND.format(version="new")))
    # What lies in the working directory is the newest of all.
    monkeypatch.chdir(repository.root)
    seen, at_commits = {}, runs()
    for commit in checkout(repository).commits_in_a_row(old, new):
        out = at_commits.run(commit)
        seen[commit.sha] = (out / "run.json").read_text()
    assert '"old"' in seen[old]
    assert '"new"' in seen[new]
    assert "--no-isolation" in seen[old]


def test_a_users_files_are_run_by_the_stratbench_that_is_here_from_their_folder(
    runs: Callable[..., CommitRuns], repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = only_commit(repository, repository.commit("first", {"bench/net.py": "1", "lib/own.py": "1"}))
    seen: list[tuple[list[str], Path | None, bool]] = []

    def run(_arguments: object, *, environ: Mapping[str, str], folder: Path, **_: object) -> int:
        paths = environ["PYTHONPATH"].split(os.pathsep)
        seen.append((paths, folder, (folder / "net.py").is_file() and (Path(paths[1]) / "own.py").is_file()))
        return 1

    monkeypatch.setattr(harness.cli.nightly.commit_runs, "run_stratbench", run)
    theirs = os.pathsep.join((str(repository.root / "lib"), str(tmp_path)))
    users = replace(
        runs(),
        is_own=False,
        start=Path("bench"),
        environ={**os.environ, "PYTHONPATH": theirs},
    )
    with pytest.raises(CaseError):
        users.run(commit)
    ((paths, folder, has_files),) = seen
    assert has_files
    assert paths[0] == str(Path(harness.__file__).parents[1])
    assert paths[1:] == [str(folder.parent / "lib") if folder else "", str(tmp_path)]
    with pytest.raises(CaseError, match="it has no folder gone"):
        replace(users, start=Path("gone")).run(commit)


def test_code_that_does_not_run_says_why(
    runs: Callable[..., CommitRuns], repository: Repository, tmp_path: Path
) -> None:
    sha = repository.commit("broken", code(FAILS))
    commit = only_commit(repository, sha)
    at_commit = runs()
    (at_commit.folder / f"{sha[:12]}.log").write_text("of a run before\n" * 9)
    with pytest.raises(CaseError, match="stratbench: no such option"):
        at_commit.run(commit)


def test_without_time_left_nothing_is_run(
    runs: Callable[..., CommitRuns], repository: Repository, tmp_path: Path
) -> None:
    sha = repository.commit("fails", code(FAILS))
    with pytest.raises(OutOfTimeError):
        runs(until_s=time.monotonic()).run(only_commit(repository, sha))
    assert not list((tmp_path / "private").glob("*.log"))


def test_a_run_that_takes_too_long_is_had_to_clean_up_and_leaves_no_worktree(
    runs: Callable[..., CommitRuns], repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = only_commit(repository, repository.commit("waits", code(WAITS)))
    ready = tmp_path / "ready"
    started: list[subprocess.Popen[bytes]] = []

    class OutOfTime(subprocess.Popen[bytes]):
        """For the first wait, time is up as soon as the command is ready to clean up."""

        def wait(self, timeout: float | None = None) -> int:
            if not started:
                started.append(self)
                eventually(ready.exists, 60.0, "the command is ready")
                assert timeout is not None
                timeout = 0.0
            return super().wait(timeout)

    # Not `subprocess.Popen` itself, which git is run by.
    monkeypatch.setattr(
        harness.processes,
        "subprocess",
        SimpleNamespace(Popen=OutOfTime, **{name: getattr(subprocess, name) for name in OF_SUBPROCESS}),
    )
    timed = replace(
        runs(until_s=time.monotonic() + 3600),
        environ={**os.environ, "READY": str(ready)},
    )
    with pytest.raises(OutOfTimeError):
        timed.run(commit)
    (process,) = started
    assert process.returncode == 1
    assert not ready.exists()
