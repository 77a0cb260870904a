"""A git checkout: its commits in a row, and the files of one of them in a folder of their own."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from harness.errors import CaseError, HarnessError, MissingError, UsageError, first_line
from harness.host_facts import without_git

_GIT_TIMEOUT_S = 120.0
_COMPLAINTS = ("fatal:", "error:")
_REVISIONS = "--end-of-options"
"""What a history calls commits stands behind this: git takes none of it for an option."""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkout:
    """A git checkout.

    Args:
        root: its folder.
        environ: of git's processes, but for what git itself is told by it.
    """

    root: Path
    environ: Mapping[str, str]

    def commits_in_a_row(self, earlier: str, later: str) -> tuple[Commit, ...]:
        """Commits from one to another, both among them, the oldest first; of a merge, the side merged into.

        Raises:
            UsageError: the checkout has not both, one does not come of the other, or git fails.
            CaseError: git takes too long. MissingError: no git.
        """
        if not (self.root / ".git").exists():
            raise UsageError(f"needs the code in a git checkout, got {self.root}", field="bisect")
        for sha in (earlier, later):
            if not self._is_so("cat-file", "-e", _REVISIONS, sha):
                raise UsageError(
                    f"needs commit {sha[:10]}, which the checkout {self.root} has not; `git fetch` "
                    "may bring it",
                    field="bisect",
                )
        if not self._is_so("merge-base", "--is-ancestor", _REVISIONS, earlier, later):
            raise UsageError(
                f"needs a commit that comes of the earlier night's, got {later[:10]}, which does not come of "
                f"{earlier[:10]}; `stratbench compare` compares runs of both",
                field="bisect",
            )
        span = f"{earlier}..{later}"
        first = self._git("log", "-1", "--format=%H %s", _REVISIONS, earlier, "--")
        after = self._git("log", "--first-parent", "--reverse", "--format=%H %s", _REVISIONS, span, "--")
        parts = [line.partition(" ") for line in (first, *after.splitlines())]
        return tuple(Commit(sha=sha, subject=subject) for sha, _, subject in parts)

    @contextmanager
    def checked_out(self, commit: Commit, folder: Path) -> Iterator[Path]:
        """The files of a commit in a worktree below a folder, which is gone when the context ends.

        Raises:
            UsageError: git does not make it. CaseError: git takes too long.
        """
        # A name that no other worktree has: git calls its own folder for this one so, too.
        path = folder / f"{commit.sha[:12]}-{secrets.token_hex(8)}"
        entry = self.root / self._git("rev-parse", "--git-common-dir") / "worktrees" / path.name
        with ExitStack() as stack:
            # Never `git worktree prune`: it drops worktrees of others whose disk is away, with their work.
            stack.callback(shutil.rmtree, entry, ignore_errors=True)
            stack.callback(shutil.rmtree, path, ignore_errors=True)
            stack.callback(self._remove, path)
            # Whoever has hooks means them for work of their own.
            self._git("-c", "core.hooksPath=/dev/null", "worktree", "add", "--detach", str(path), commit.sha)
            yield path

    def _remove(self, path: Path) -> None:
        """Have git remove a worktree; what it leaves, or fails at, is removed without it."""
        with suppress(HarnessError):
            self._run("worktree", "remove", "--force", "--force", str(path))

    def _git(self, *arguments: str) -> str:
        """What a git command prints."""
        done = self._run(*arguments)
        if done.returncode:
            raise _failure(done)
        return done.stdout.strip()

    def _is_so(self, *arguments: str) -> bool:
        """Answer of a git command whose status is 0 for yes and 1 for no."""
        done = self._run(*arguments)
        if done.returncode not in (0, 1):
            raise _failure(done)
        return done.returncode == 0

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                ["git", "-C", str(self.root), *arguments],
                env=without_git(self.environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_GIT_TIMEOUT_S,
                check=False,
            )
        except FileNotFoundError:
            raise MissingError("git must be on the path, got none; install it", field="bisect") from None
        except subprocess.TimeoutExpired:
            raise CaseError(
                "git-timed-out",
                f"`git {' '.join(arguments)}` in {self.root} must end within {_GIT_TIMEOUT_S:g} s, and has "
                "not; look whether its disk answers, and try again",
                stage="provision",
                field="bisect",
            ) from None


def _failure(done: subprocess.CompletedProcess[str]) -> UsageError:
    command = " ".join(done.args[3:])
    says = next((line for line in done.stderr.splitlines() if line.startswith(_COMPLAINTS)), done.stderr)
    return UsageError(
        f"`git {command}` must work in {done.args[2]}, git says: {first_line(says.strip()) or 'nothing'}; "
        "mend that, and try again",
        field="bisect",
    )
