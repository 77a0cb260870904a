"""Commits of a checkout, its worktrees, and git's search in one of them."""

import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from git_repository import Repository

import harness.cli.nightly.checkout
from harness.cli import main
from harness.cli.nightly.checkout import Checkout, Commit, Judgement
from harness.errors import CaseError, UsageError
from harness.provision.worktrees import forget_worktrees, new_worktree

HANGS = """#!/bin/sh
case "$*" in
    *"worktree {hangs_at}"*)
        test {hangs_at} = remove || {git} "$@"
        exec sleep 600
esac
exec {git} "$@"
"""


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "checkout")


def checkout(repository: Repository, environ: Mapping[str, str] = os.environ) -> Checkout:
    return Checkout(root=repository.root, environ=environ)


def only_commit(repository: Repository, sha: str) -> Commit:
    (commit,) = checkout(repository).commits_in_a_row(sha, sha)
    return commit


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
    with pytest.raises(UsageError, match="does not descend"):
        checkout(repository).commits_in_a_row(aside, second)
    with pytest.raises(UsageError, match="needs commit 0123456789, which"):
        checkout(repository).commits_in_a_row(first, "0123456789" * 4)


def test_what_a_history_calls_a_commit_is_no_option_of_git(repository: Repository, tmp_path: Path) -> None:
    first = repository.commit("first")
    option = f"--output={tmp_path}/"
    for earlier, later in ((option, first), (first, option)):
        with pytest.raises(UsageError, match=r"failed in .*: fatal: Not a valid object name --output="):
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
    with suppress(KeyboardInterrupt), checkout(repository).worktree(commit, tmp_path) as worktree:
        assert (worktree.root / "file").read_text() == "committed"
        assert not (worktree.root / "hooked").exists()
        (worktree.root / "by-the-run").touch()
        assert repository.worktrees == 2
        raise KeyboardInterrupt
    assert not worktree.root.exists()
    assert repository.worktrees == 1
    assert (repository.root / "file").read_text() == "not committed"


@pytest.fixture
def killed(repository: Repository, tmp_path: Path) -> Callable[[], Path]:
    """A worktree of a bisection that was killed, in its temporary folder."""
    commit = repository.commit("first")

    def make() -> Path:
        path = new_worktree(tmp_path / f"stratbench-{secrets.token_hex(4)}")
        repository.git("worktree", "add", "--quiet", "--detach", str(path), commit)
        return path

    return make


def entries(repository: Repository) -> set[str]:
    return {entry.name for entry in (repository.root / ".git" / "worktrees").glob("*")}


def test_the_removal_of_a_temporary_folder_removes_the_entries_of_its_worktrees(
    repository: Repository, killed: Callable[[], Path], tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    repository.git("worktree", "add", "--quiet", "--detach", str(theirs))
    worktree, living = killed(), killed()
    # A folder that names the entries of others, as anybody's could.
    for name in ("theirs", living.name):
        forged = worktree.parent / f"worktree-{name}"
        forged.mkdir()
        (forged / ".git").write_text(f"gitdir: {repository.root}/.git/worktrees/{name}")
    forget_worktrees(worktree.parent)
    assert entries(repository) == {"theirs", living.name}


def test_a_bisection_and_clean_remove_what_killed_ones_left_and_nothing_else(
    repository: Repository,
    killed: Callable[[], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    theirs, living, dead = tmp_path / "theirs", killed(), killed()
    repository.git("worktree", "add", "--quiet", "--detach", str(theirs))
    shutil.rmtree(theirs)
    shutil.rmtree(dead.parent)
    commit = only_commit(repository, repository.git("rev-parse", "HEAD"))
    with checkout(repository).worktree(commit, tmp_path):
        pass
    assert entries(repository) == {"theirs", living.name}
    dead = killed()
    shutil.rmtree(dead.parent)
    monkeypatch.chdir(repository.root)
    assert main(["clean", "--dry-run"]) == 0
    entry = repository.root / ".git" / "worktrees" / dead.name
    assert f"would remove the git worktree {entry}\n" in capsys.readouterr().out
    assert entries(repository) == {"theirs", living.name, dead.name}
    assert main(["clean"]) == 0
    assert f"removed the git worktree {entry}\n" in capsys.readouterr().out
    assert entries(repository) == {"theirs", living.name}


def test_worktrees_of_others_whose_folder_is_away_stay(repository: Repository, tmp_path: Path) -> None:
    commit = only_commit(repository, repository.commit("first"))
    theirs, away = tmp_path / "theirs", tmp_path / "away"
    repository.git("worktree", "add", "--quiet", "--detach", str(theirs))
    theirs.rename(away)
    with checkout(repository).worktree(commit, tmp_path) as worktree:
        pass
    # Nor where git cannot remove ours, as it does not know the folder for a worktree any more.
    with checkout(repository).worktree(commit, tmp_path) as worktree:
        (worktree.root / ".git").unlink()
    away.rename(theirs)
    assert repository.worktrees == 2
    assert repository.git("-C", str(theirs), "rev-parse", "HEAD") == commit.sha
    assert [path.name for path in (repository.root / ".git" / "worktrees").iterdir()] == ["theirs"]
    assert not list(tmp_path.glob("worktree-*"))


def test_what_git_says_is_passed_on(repository: Repository) -> None:
    sha = repository.commit("first")
    (repository.root / ".git" / "config").write_text("[core\n")
    with pytest.raises(UsageError, match=r"failed in .*: fatal: bad config line 1"):
        checkout(repository).commits_in_a_row(sha, sha)


@pytest.mark.parametrize("hangs_at", ["add", "remove"])
def test_a_git_that_hangs_is_an_error_in_one_line_and_leaves_nothing(
    hangs_at: str, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = only_commit(repository, repository.commit("first"))
    monkeypatch.setattr(harness.cli.nightly.checkout, "_GIT_TIMEOUT_S", 2.0)
    fake = tmp_path / "bin" / "git"
    fake.parent.mkdir()
    # It hangs when all but the end of its work is done.
    fake.write_text(HANGS.format(git=shutil.which("git"), hangs_at=hangs_at))
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake.parent), prepend=os.pathsep)
    with ExitStack() as stack:
        if hangs_at == "add":
            stack.enter_context(pytest.raises(CaseError, match=r"worktree add .* did not end within 2 s"))
        stack.enter_context(checkout(repository).worktree(commit, tmp_path))
    assert not list(tmp_path.glob("worktree-*"))
    assert repository.worktrees == 1


N_COMMITS = 12


def searched(
    repository: Repository, folder: Path, first_bad: int, skipped: frozenset[int], most: int = N_COMMITS
) -> tuple[list[int], list[int], list[int]]:
    """Numbers of commits that a search has found good, bad, and all that it asked about."""
    shas = [repository.commit(f"{number}", {"file": f"{number}"}) for number in range(N_COMMITS)]
    commits = checkout(repository).commits_in_a_row(shas[0], shas[-1])
    good, bad, ends = [0], [N_COMMITS - 1], []

    with checkout(repository).worktree(commits[0], folder) as worktree:

        def judge(sha: str) -> Judgement | None:
            number = shas.index(sha)
            assert (worktree.root / "file").read_text() == f"{number}"
            if len(ends) == most:
                return None
            ends.append(number)
            if number in skipped:
                return "skip"
            (bad if number >= first_bad else good).append(number)
            return "bad" if number >= first_bad else "good"

        worktree.bisect(commits[0], commits[-1], judge)
    assert repository.worktrees == 1
    assert not (repository.root / ".git" / "BISECT_LOG").exists()
    return good, bad, ends


@pytest.mark.parametrize("first_bad", [1, 4, 11])
def test_git_finds_the_first_bad_commit_by_few_questions(
    first_bad: int, repository: Repository, tmp_path: Path
) -> None:
    good, bad, ends = searched(repository, tmp_path, first_bad, frozenset())
    assert (max(good), min(bad)) == (first_bad - 1, first_bad)
    assert len(ends) <= 4


def test_git_passes_over_commits_that_decide_nothing(repository: Repository, tmp_path: Path) -> None:
    skipped = frozenset((6, 7))
    good, bad, ends = searched(repository, tmp_path, 7, skipped)
    assert (max(good), min(bad)) == (5, 8)
    assert skipped <= set(ends)


def test_a_search_that_is_stopped_ends_with_what_is_known(repository: Repository, tmp_path: Path) -> None:
    good, bad, ends = searched(repository, tmp_path, 7, frozenset(), most=1)
    assert len(ends) == 1
    assert max(good) < 7 <= min(bad)


def test_a_search_that_is_interrupted_leaves_nothing(repository: Repository, tmp_path: Path) -> None:
    shas = [repository.commit(f"{number}") for number in range(4)]
    commits = checkout(repository).commits_in_a_row(shas[0], shas[-1])

    def judge(_sha: str) -> Judgement | None:
        raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        checkout(repository).worktree(commits[0], tmp_path) as worktree,
    ):
        worktree.bisect(commits[0], commits[-1], judge)
    assert repository.worktrees == 1
    assert not list(tmp_path.glob("worktree-*"))
