"""A git checkout: its commits in a row, and the files of one of them in a folder of their own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.errors import MissingError, UsageError, first_line

_GIT_TIMEOUT_S = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """A commit.

    Args:
        sha: 40 hex digits. subject: first line of its message.
    """

    sha: str
    subject: str

    def __str__(self) -> str:
        return f"{self.sha[:10]} {self.subject}".rstrip()


def commits_in_a_row(root: Path, earlier: str, later: str) -> tuple[Commit, ...]:
    """Commits from one to another, both among them, the oldest first; of a merge, the side merged into.

    Args:
        root: of the checkout.
    Raises:
        UsageError: the checkout has not both, or one does not come of the other. MissingError: no git.
    """
    if not (root / ".git").exists():
        raise UsageError(f"needs the code in a git checkout, got {root}", field="bisect")
    for sha in (earlier, later):
        if _git(root, "cat-file", "-e", f"{sha}^{{commit}}") is None:
            raise UsageError(
                f"needs commit {sha[:10]}, which the checkout {root} has not; `git fetch` may bring it",
                field="bisect",
            )
    if _git(root, "merge-base", "--is-ancestor", earlier, later) is None:
        raise UsageError(
            f"needs a commit that comes of the earlier night's, got {later[:10]}, which does not come of "
            f"{earlier[:10]}; `stratbench compare` compares runs of both",
            field="bisect",
        )
    first = _git(root, "log", "-1", "--format=%H %s", earlier) or earlier
    after = _git(root, "log", "--first-parent", "--reverse", "--format=%H %s", f"{earlier}..{later}") or ""
    parts = [line.partition(" ") for line in (first, *after.splitlines())]
    return tuple(Commit(sha=sha, subject=subject) for sha, _, subject in parts)


@contextmanager
def checked_out(root: Path, commit: Commit, folder: Path) -> Iterator[Path]:
    """The files of a commit in a worktree below a folder, which is gone when the context ends.

    Raises:
        UsageError: git does not make it.
    """
    path = folder / commit.sha[:12]
    with ExitStack() as stack:
        stack.callback(_remove, root, path)
        # Whoever has hooks means them for work of their own.
        made = _run(
            root, "-c", "core.hooksPath=/dev/null", "worktree", "add", "--detach", str(path), commit.sha
        )
        if made.returncode:
            raise UsageError(
                f"needs a worktree of {commit}, git says: {first_line(made.stderr.strip()[-300:])}",
                field="bisect",
            )
        yield path


def _remove(root: Path, path: Path) -> None:
    """Remove a worktree, also one that git was interrupted at."""
    _run(root, "worktree", "remove", "--force", "--force", str(path))
    shutil.rmtree(path, ignore_errors=True)
    _run(root, "worktree", "prune")


def _git(root: Path, *arguments: str) -> str | None:
    """What a git command prints; None where it fails."""
    done = _run(root, *arguments)
    return None if done.returncode else done.stdout.strip()


def _run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["git", "-C", str(root), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise MissingError("git must be on the path, got none; install it", field="bisect") from None
