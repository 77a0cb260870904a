"""A git checkout: ranges of commits, worktrees, and git's search for the first bad commit."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from harness.errors import CaseError, HarnessError, MissingError, UsageError, first_line
from harness.host_facts import without_git
from harness.provision.temporary_folder import PREFIX
from harness.provision.worktrees import dead_entries, new_worktree
from harness.records.conditions import short_hash

Judgement = Literal["good", "bad", "skip"]
"""Judgement on a commit for `git bisect`."""
_ONLY_SKIPPED = 2
"""Exit status of `git bisect` if all remaining commits were skipped."""
_GIT_TIMEOUT_S = 120.0
_COMPLAINTS = ("fatal:", "error:")
_REVISIONS = "--end-of-options"
"""Option before commits of a history, so that git takes none of them for an option."""
_NO_HOOKS = ("-c", "core.hooksPath=/dev/null")
"""Options that disable hooks, which are meant for a person's own work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """A commit: 40 hex digits, and the first line of its message."""

    sha: str
    subject: str

    def __str__(self) -> str:
        return f"{short_hash(self.sha)} {self.subject}".rstrip()


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkout:
    """Folder with the files of a commit, and git's data in it or in another checkout.

    Args:
        environ: environment of git's processes, without git's own variables.
    """

    root: Path
    environ: Mapping[str, str]

    def commits_in_a_row(self, earlier: str, later: str) -> tuple[Commit, ...]:
        """Commits from one to another, both included, oldest first; at a merge, along the first parent.

        Raises:
            UsageError: the checkout lacks one, the later does not descend from the earlier, or git fails.
            CaseError: git takes too long. MissingError: no git.
        """
        if not (self.root / ".git").exists():
            raise UsageError(
                f"needs the code in a git checkout, got {self.root}; clone its repository", field="bisect"
            )
        for sha in (earlier, later):
            if not self._is_so("cat-file", "-e", _REVISIONS, sha):
                raise UsageError(
                    f"needs commit {short_hash(sha)}, which is missing in the checkout {self.root}; "
                    "run `git fetch`",
                    field="bisect",
                )
        if not self._is_so("merge-base", "--is-ancestor", _REVISIONS, earlier, later):
            raise UsageError(
                f"needs a descendant of the earlier night's commit, got {short_hash(later)}, which does not "
                f"descend from {short_hash(earlier)}; compare runs of both with `stratbench compare`",
                field="bisect",
            )
        span = f"{earlier}..{later}"
        first = self._git("log", "-1", "--format=%H %s", _REVISIONS, earlier, "--")
        after = self._git("log", "--first-parent", "--reverse", "--format=%H %s", _REVISIONS, span, "--")
        parts = [line.partition(" ") for line in (first, *after.splitlines())]
        return tuple(Commit(sha=sha, subject=subject) for sha, _, subject in parts)

    @contextmanager
    def worktree(self, commit: Commit, folder: Path) -> Iterator[Checkout]:
        """Worktree at a commit in a folder, removed when the context ends.

        Raises:
            UsageError: git cannot create it. CaseError: git takes too long.
        """
        self.remove_dead_worktrees()
        path = new_worktree(folder)
        entry = self._git_folder() / "worktrees" / path.name
        with ExitStack() as stack:
            # Never `git worktree prune`: it drops others' worktrees on unmounted disks, with their work.
            stack.callback(shutil.rmtree, entry, ignore_errors=True)
            stack.callback(shutil.rmtree, path, ignore_errors=True)
            stack.callback(self._remove, path)
            self._git("worktree", "add", "--detach", str(path), commit.sha)
            yield replace(self, root=path)

    def remove_dead_worktrees(self, *, dry_run: bool = False) -> tuple[Path, ...]:
        """Remove the entries of worktrees whose bisections were killed; return their paths.

        Args:
            dry_run: True only lists them.
        Raises:
            UsageError: git fails. CaseError: git takes too long. MissingError: no git.
        """
        entries = tuple(dead_entries(self._git_folder(), prefix=PREFIX))
        for entry in () if dry_run else entries:
            shutil.rmtree(entry, ignore_errors=True)
        return entries

    def check_out(self, commit: Commit) -> None:
        """Replace the files of this folder by those of a commit; not for a person's own checkout."""
        self._git("checkout", "--quiet", "--force", "--detach", commit.sha)
        self._git("clean", "-ffdxq")

    def bisect(self, good: Commit, bad: Commit, judge: Callable[[str], Judgement | None]) -> None:
        """Let `git bisect` choose commits along first parents, and check each out in this folder.

        Args:
            judge: returns the judgement on the checked-out commit; None ends the search.
        Raises:
            UsageError: git fails. CaseError: git takes too long.
        """
        self._git("bisect", "start", "--first-parent", bad.sha, good.sha)
        judged = ""
        # git stays at the last commit if no other is left.
        while (sha := self._git("rev-parse", "HEAD")) != judged:
            judgement = judge(sha)
            if judgement is None:
                return
            self._git("bisect", judgement, successes=(0, _ONLY_SKIPPED))
            judged = sha

    def _git_folder(self) -> Path:
        return self.root / self._git("rev-parse", "--git-common-dir")

    def _remove(self, path: Path) -> None:
        with suppress(HarnessError):
            self._run("worktree", "remove", "--force", "--force", str(path))

    def _git(self, *arguments: str, successes: Collection[int] = (0,)) -> str:
        result = self._run(*arguments)
        if result.returncode not in successes:
            raise _failure(result)
        return result.stdout.strip()

    def _is_so(self, *arguments: str) -> bool:
        result = self._run(*arguments)
        if result.returncode not in (0, 1):
            raise _failure(result)
        return result.returncode == 0

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                ["git", "-C", str(self.root), *_NO_HOOKS, *arguments],
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
                f"`git {' '.join(arguments)}` in {self.root} did not end within {_GIT_TIMEOUT_S:g} s; check "
                "the disk and try again",
                stage="provision",
                field="bisect",
            ) from None


def _failure(result: subprocess.CompletedProcess[str]) -> UsageError:
    _, _, root, *arguments = result.args
    command = " ".join(arguments[len(_NO_HOOKS) :])
    lines = result.stderr.splitlines()
    reason = next((line for line in lines if line.startswith(_COMPLAINTS)), result.stderr)
    return UsageError(
        f"`git {command}` failed in {root}: {first_line(reason.strip()) or 'no message'}; fix that and try "
        "again",
        field="bisect",
    )
