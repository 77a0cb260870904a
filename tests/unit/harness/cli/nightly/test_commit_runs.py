"""Commits of a checkout, and runs by the code of each in a folder that goes again."""

import math
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from git_repository import Repository
from hypothesis import given
from hypothesis import strategies as st
from waiting import eventually

import harness.cli.nightly.commit_runs
import harness.processes
from harness.cli.nightly.commit_runs import (
    Checkout,
    Commit,
    CommitRuns,
    Finding,
    OutOfTimeError,
    narrowed,
    placed_in,
)
from harness.errors import CaseError, UsageError
from harness.experiment.load import resolve
from harness.experiment.model import Experiment


@given(st.data(), st.integers(2, 200))
def test_the_first_bad_one_is_among_the_suspects_and_alone_where_all_can_be_told(data, n_commits) -> None:
    first_bad = data.draw(st.integers(1, n_commits - 1))
    untold = data.draw(st.sets(st.integers(1, n_commits - 1)))
    looks: list[int] = []

    def look(index: int) -> Finding:
        looks.append(index)
        return "untold" if index in untold else "bad" if index >= first_bad else "good"

    result = narrowed(n_commits, look)
    assert first_bad in result.suspects
    assert not result.is_cut_short
    # All that lies between is untold.
    assert set(result.suspects) - {result.first_known_bad} <= untold
    assert len(set(looks)) == len(looks)
    if not untold:
        assert list(result.suspects) == [first_bad]
        assert len(looks) <= math.ceil(math.log2(n_commits - 1)) if n_commits > 2 else not looks


@given(st.integers(3, 100), st.integers(0, 6), st.data())
def test_what_is_known_when_time_is_up_is_still_said(n_commits, n_looks, data) -> None:
    first_bad = data.draw(st.integers(1, n_commits - 1))
    left = [n_looks]

    def look(index: int) -> Finding:
        if not left[0]:
            raise OutOfTimeError
        left[0] -= 1
        return "bad" if index >= first_bad else "good"

    result = narrowed(n_commits, look)
    assert first_bad in result.suspects
    assert result.is_cut_short == (len(result.suspects) > 1)


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
        assert [str(each) for each in experiment.spec.workloads] == [f"{placed}:net"]


def test_strategies_of_the_checkout_move_with_it_and_others_stay(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    both = spec("nets/net.py:net", "mine.py:Mine", "../elsewhere/theirs.py:Mine", "ps")
    placed = placed_in(root, both, working_directory=Path.cwd()).spec
    names = ["mine.py:Mine", f"{root.parent}/elsewhere/theirs.py:Mine", "ps"]
    assert [each.name for each in placed.strategies] == names
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
HANGS = """#!/bin/sh
case "$*" in
    *"worktree {hangs_at}"*)
        test {hangs_at} = remove || {git} "$@"
        exec sleep 600
esac
exec {git} "$@"
"""


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


def runs(repository: Repository, tmp_path: Path, until_s: float | None = None) -> CommitRuns:
    folder = tmp_path / "private"
    folder.mkdir(exist_ok=True)
    return CommitRuns(
        root=repository.root,
        folder=folder,
        experiment=tmp_path / "x.yaml",
        options=("--no-isolation",),
        environ=os.environ,
        until_s=until_s,
    )


def test_commits_come_oldest_first_and_of_a_merge_the_side_merged_into(repository: Repository) -> None:
    first = repository.commit("first")
    second = repository.commit("second")
    repository.git("checkout", "--quiet", "-b", "aside", first)
    aside = repository.commit("aside")
    repository.git("checkout", "--quiet", "main")
    repository.git("merge", "--quiet", "--no-ff", "--message", "merge", "aside")
    last = repository.commit("last: with a colon")
    row = checkout(repository).commits_in_a_row(first, last)
    assert [commit.subject for commit in row] == ["first", "second", "merge", "last: with a colon"]
    assert [row[0].sha, row[1].sha, row[-1].sha] == [first, second, last]
    with pytest.raises(UsageError, match="does not come of"):
        checkout(repository).commits_in_a_row(aside, second)
    with pytest.raises(UsageError, match="needs commit 0123456789, which"):
        checkout(repository).commits_in_a_row(first, "0123456789" * 4)


def test_what_a_history_calls_a_commit_is_no_option_of_git(repository: Repository, tmp_path: Path) -> None:
    first = repository.commit("first")
    option = f"--output={tmp_path}/"
    for earlier, later in ((option, first), (first, option)):
        with pytest.raises(UsageError, match="git says: fatal: Not a valid object name --output="):
            checkout(repository).commits_in_a_row(earlier, later)
    assert list(tmp_path.iterdir()) == [repository.root]


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="in a git checkout, got"):
        Checkout(root=tmp_path, environ=os.environ).commits_in_a_row("a", "b")


def test_a_worktree_has_what_is_committed_and_goes_however_it_ends(
    repository: Repository, tmp_path: Path
) -> None:
    commit = only_commit(repository, repository.commit("first", {"file": "committed"}))
    hook = repository.root / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ntouch hooked\n")
    hook.chmod(0o755)
    (repository.root / "file").write_text("not committed")
    with suppress(KeyboardInterrupt), checkout(repository).checked_out(commit, tmp_path) as path:
        assert (path / "file").read_text() == "committed"
        assert not (path / "hooked").exists()
        (path / "by-the-run").touch()
        assert repository.worktrees == 2
        raise KeyboardInterrupt
    assert not path.exists()
    assert repository.worktrees == 1
    assert (repository.root / "file").read_text() == "not committed"


def test_worktrees_of_others_whose_folder_is_away_stay(repository: Repository, tmp_path: Path) -> None:
    commit = only_commit(repository, repository.commit("first"))
    theirs, away = tmp_path / "theirs", tmp_path / "away"
    repository.git("worktree", "add", "--quiet", "--detach", str(theirs))
    theirs.rename(away)
    with checkout(repository).checked_out(commit, tmp_path) as path:
        pass
    # Nor where git cannot remove ours, as it does not know the folder for a worktree any more.
    with checkout(repository).checked_out(commit, tmp_path) as path:
        (path / ".git").unlink()
    away.rename(theirs)
    assert repository.worktrees == 2
    assert repository.git("-C", str(theirs), "rev-parse", "HEAD") == commit.sha
    assert [each.name for each in (repository.root / ".git" / "worktrees").iterdir()] == ["theirs"]
    assert [each for each in tmp_path.iterdir() if each.name.startswith(commit.sha[:12])] == []


def test_variables_of_git_do_not_lead_it_elsewhere(repository: Repository, tmp_path: Path) -> None:
    sha = repository.commit("prints", code(PRINTS))
    other = Repository(tmp_path / "other")
    environ = {**os.environ, "GIT_DIR": str(other.root / ".git"), "GIT_INDEX_FILE": str(tmp_path / "index")}
    (commit,) = checkout(repository, environ).commits_in_a_row(sha, sha)
    with pytest.raises(CaseError, match=r"its variables: \[\]"):
        replace(runs(repository, tmp_path), environ=environ).run(commit)
    assert (other.worktrees, repository.worktrees) == (1, 1)


def test_what_git_says_is_passed_on(repository: Repository) -> None:
    sha = repository.commit("first")
    (repository.root / ".git" / "config").write_text("[core\n")
    with pytest.raises(UsageError, match="git says: fatal: bad config line 1"):
        checkout(repository).commits_in_a_row(sha, sha)


@pytest.mark.parametrize("hangs_at", ["add", "remove"])
def test_a_git_that_hangs_is_an_error_in_one_line_and_leaves_nothing(
    hangs_at: str, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = only_commit(repository, repository.commit("first"))
    monkeypatch.setattr(harness.cli.nightly.commit_runs, "_GIT_TIMEOUT_S", 2.0)
    fake = tmp_path / "bin" / "git"
    fake.parent.mkdir()
    # It hangs when all but the end of its work is done.
    fake.write_text(HANGS.format(git=shutil.which("git"), hangs_at=hangs_at))
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake.parent), prepend=os.pathsep)
    with ExitStack() as stack:
        if hangs_at == "add":
            stack.enter_context(pytest.raises(CaseError, match=r"worktree add .* must end within 2 s"))
        stack.enter_context(checkout(repository).checked_out(commit, tmp_path))
    assert not list(tmp_path.glob(f"{commit.sha[:12]}*"))
    assert repository.worktrees == 1


def test_a_run_is_by_the_code_of_its_commit_alone(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = repository.commit("old", code(COMMAND.format(version="old")))
    new = repository.commit("new", code(COMMAND.format(version="new")))
    # What lies in the working directory is the newest of all.
    monkeypatch.chdir(repository.root)
    seen = {}
    for commit in checkout(repository).commits_in_a_row(old, new):
        out = runs(repository, tmp_path).run(commit)
        seen[commit.sha] = (out / "run.json").read_text()
    assert '"old"' in seen[old]
    assert '"new"' in seen[new]
    assert "--no-isolation" in seen[old]
    assert repository.worktrees == 1


def test_a_users_files_are_run_by_the_stratbench_that_is_here_from_their_folder(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
        runs(repository, tmp_path),
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
    assert repository.worktrees == 1


def test_code_that_does_not_run_says_why(repository: Repository, tmp_path: Path) -> None:
    sha = repository.commit("broken", code(FAILS))
    commit = only_commit(repository, sha)
    at_commit = runs(repository, tmp_path)
    (at_commit.folder / f"{sha[:12]}.log").write_text("of a run before\n" * 9)
    with pytest.raises(CaseError, match="stratbench: no such option"):
        at_commit.run(commit)
    assert repository.worktrees == 1


def test_without_time_left_nothing_is_run(repository: Repository, tmp_path: Path) -> None:
    sha = repository.commit("fails", code(FAILS))
    with pytest.raises(OutOfTimeError):
        runs(repository, tmp_path, until_s=time.monotonic()).run(only_commit(repository, sha))
    assert not any((tmp_path / "private").iterdir())


def test_a_run_that_takes_too_long_is_had_to_clean_up_and_leaves_no_worktree(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
        runs(repository, tmp_path, until_s=time.monotonic() + 3600),
        environ={**os.environ, "READY": str(ready)},
    )
    with pytest.raises(OutOfTimeError):
        timed.run(commit)
    (process,) = started
    assert process.returncode == 1
    assert not ready.exists()
    assert repository.worktrees == 1
