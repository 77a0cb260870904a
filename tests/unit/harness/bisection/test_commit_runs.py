"""Commits of a checkout: in which order, and that the code of each runs in a folder that goes again."""

import os
import time
from contextlib import suppress
from pathlib import Path

import pytest
from git_repository import Repository

from harness.bisection.checkout import checked_out, commits_in_a_row
from harness.bisection.commit_run import CommitRuns
from harness.bisection.search import OutOfTimeError
from harness.errors import CaseError, UsageError

COMMAND = """
import json, pathlib, sys
experiment, out = sys.argv[2], pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
out.mkdir(parents=True)
(out / "run.json").write_text(json.dumps({{"version": {version!r}, "arguments": sys.argv[1:]}}))
"""
WAITS = "import signal; signal.pause()"
FAILS = "import sys; sys.exit('stratbench: no such option')"


def code(text: str) -> dict[str, str]:
    return {"harness/__init__.py": "", "harness/cli/__init__.py": "", "harness/cli/__main__.py": text}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "checkout")


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
    row = commits_in_a_row(repository.root, first, last)
    assert [commit.subject for commit in row] == ["first", "second", "merge", "last: with a colon"]
    assert [row[0].sha, row[1].sha, row[-1].sha] == [first, second, last]
    with pytest.raises(UsageError, match="does not come of"):
        commits_in_a_row(repository.root, aside, second)
    with pytest.raises(UsageError, match="needs commit 0123456789, which"):
        commits_in_a_row(repository.root, first, "0123456789" * 4)


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="in a git checkout, got"):
        commits_in_a_row(tmp_path, "a", "b")


def test_a_worktree_has_what_is_committed_and_goes_however_it_ends(
    repository: Repository, tmp_path: Path
) -> None:
    repository.commit("first", {"file": "committed"})
    (commit,) = commits_in_a_row(repository.root, *[repository.git("rev-parse", "HEAD")] * 2)
    hook = repository.root / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ntouch hooked\n")
    hook.chmod(0o755)
    (repository.root / "file").write_text("not committed")
    with suppress(KeyboardInterrupt), checked_out(repository.root, commit, tmp_path) as path:
        assert (path / "file").read_text() == "committed"
        assert not (path / "hooked").exists()
        (path / "by-the-run").touch()
        assert repository.worktrees == 2
        raise KeyboardInterrupt
    assert not path.exists()
    assert repository.worktrees == 1
    assert (repository.root / "file").read_text() == "not committed"


def test_a_run_is_by_the_code_of_its_commit_alone(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = repository.commit("old", code(COMMAND.format(version="old")))
    new = repository.commit("new", code(COMMAND.format(version="new")))
    # What lies in the working directory is the newest of all.
    monkeypatch.chdir(repository.root)
    seen = {}
    for commit in commits_in_a_row(repository.root, old, new):
        out = runs(repository, tmp_path).run(commit)
        seen[commit.sha] = (out / "run.json").read_text()
    assert '"old"' in seen[old]
    assert '"new"' in seen[new]
    assert "--no-isolation" in seen[old]
    assert repository.worktrees == 1


def test_code_that_does_not_run_says_why(repository: Repository, tmp_path: Path) -> None:
    sha = repository.commit("broken", code(FAILS))
    (commit,) = commits_in_a_row(repository.root, sha, sha)
    with pytest.raises(CaseError, match="stratbench: no such option"):
        runs(repository, tmp_path).run(commit)
    assert repository.worktrees == 1


def test_a_run_that_takes_too_long_is_ended_and_leaves_no_worktree(
    repository: Repository, tmp_path: Path
) -> None:
    sha = repository.commit("waits", code(WAITS))
    (commit,) = commits_in_a_row(repository.root, sha, sha)
    for left_s in (-1.0, 0.5):
        with pytest.raises(OutOfTimeError):
            runs(repository, tmp_path, until_s=time.monotonic() + left_s).run(commit)
    assert repository.worktrees == 1
    assert not any(str(tmp_path) in command for command in commands())


def commands() -> list[str]:
    """Command lines of all processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return found
