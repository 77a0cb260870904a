"""A git checkout: commits in a row, a worktree apart, and git's search for the first bad commit there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Timer
from typing import IO, NoReturn

from harness.errors import CaseError, HarnessError, MissingError, UsageError, first_line
from harness.host_facts import without_git
from harness.provision.temporary_folder import PREFIX
from harness.provision.worktrees import dead_entries, new_worktree

GOOD, BAD, SKIP, STOP = 0, 1, 125, 128
"""Exit statuses by which a command answers `git bisect run`."""
_GIT_TIMEOUT_S = 120.0
_COMPLAINTS = ("fatal:", "error:")
_REVISIONS = "--end-of-options"
"""Commits named by a history stand behind this: git takes none of them for an option."""
_NO_HOOKS = ("-c", "core.hooksPath=/dev/null")
"""Hooks are meant for a person's own work."""
_QUESTION = "stratbench: is this commit good?"
_ASK = f'echo "{_QUESTION}"; read -r status || exit {STOP}; exit "$status"'


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """A commit: 40 hex digits, and the first line of its message."""

    sha: str
    subject: str

    def __str__(self) -> str:
        return f"{self.sha[:10]} {self.subject}".rstrip()


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkout:
    """A folder with the files of a commit, and git's data beside them or in another checkout.

    Args:
        environ: of git's processes, without git's own variables.
    """

    root: Path
    environ: Mapping[str, str]

    def commits_in_a_row(self, earlier: str, later: str) -> tuple[Commit, ...]:
        """Commits from one to another, both included, the oldest first; of a merge, the side merged into.

        Raises:
            UsageError: the checkout lacks one, the later does not descend from the earlier, or git fails.
            CaseError: git takes too long. MissingError: no git.
        """
        if not (self.root / ".git").exists():
            raise UsageError(f"needs the code in a git checkout, got {self.root}", field="bisect")
        for sha in (earlier, later):
            if not self._is_so("cat-file", "-e", _REVISIONS, sha):
                raise UsageError(
                    f"needs commit {sha[:10]}, which is missing in the checkout {self.root}; run `git fetch`",
                    field="bisect",
                )
        if not self._is_so("merge-base", "--is-ancestor", _REVISIONS, earlier, later):
            raise UsageError(
                f"needs a descendant of the earlier night's commit, got {later[:10]}, which does not descend "
                f"from {earlier[:10]}; compare runs of both with `stratbench compare`",
                field="bisect",
            )
        span = f"{earlier}..{later}"
        first = self._git("log", "-1", "--format=%H %s", _REVISIONS, earlier, "--")
        after = self._git("log", "--first-parent", "--reverse", "--format=%H %s", _REVISIONS, span, "--")
        parts = [line.partition(" ") for line in (first, *after.splitlines())]
        return tuple(Commit(sha=sha, subject=subject) for sha, _, subject in parts)

    @contextmanager
    def worktree(self, commit: Commit, folder: Path) -> Iterator[Checkout]:
        """A worktree at a commit in a folder, removed when the context ends.

        Raises:
            UsageError: git does not make it. CaseError: git takes too long.
        """
        self.remove_dead_worktrees()
        path = new_worktree(folder)
        entry = self._git_folder() / "worktrees" / path.name
        with ExitStack() as stack:
            # Never `git worktree prune`: it drops worktrees of others whose disk is away, with their work.
            stack.callback(shutil.rmtree, entry, ignore_errors=True)
            stack.callback(shutil.rmtree, path, ignore_errors=True)
            stack.callback(self._remove, path)
            self._git("worktree", "add", "--detach", str(path), commit.sha)
            yield replace(self, root=path)

    def remove_dead_worktrees(self, *, dry_run: bool = False) -> tuple[Path, ...]:
        """Remove the entries of worktrees whose bisections were killed; return their paths.

        Args:
            dry_run: only list them.
        Raises:
            UsageError: git fails. CaseError: git takes too long. MissingError: no git.
        """
        entries = tuple(dead_entries(self._git_folder(), prefix=PREFIX))
        for entry in () if dry_run else entries:
            shutil.rmtree(entry, ignore_errors=True)
        return entries

    def check_out(self, commit: Commit) -> None:
        """Have the files of a commit in this folder, and no others: not for a person's own checkout."""
        self._git("checkout", "--quiet", "--force", "--detach", commit.sha)
        self._git("clean", "-ffdxq")

    def bisect(self, good: Commit, bad: Commit, judge: Callable[[str], int]) -> None:
        """Have `git bisect run` search along first parents, in this folder.

        Args:
            judge: takes the commit that is checked out; returns GOOD, BAD, SKIP or STOP.
        Raises:
            UsageError: git fails. CaseError: git takes too long.
        """
        self._git("bisect", "start", "--first-parent", bad.sha, good.sha)
        # The test that git runs asks this process, which knows what the runs before have shown.
        command = self._command("bisect", "run", "sh", "-c", _ASK)
        lines: list[str] = []
        with (
            subprocess.Popen(
                command,
                env=without_git(self.environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                # Ctrl-C comes to this process alone, which ends git.
                start_new_session=True,
            ) as git,
            ExitStack() as stack,
        ):
            stack.callback(_kill_group, git)
            assert git.stdin is not None
            assert git.stdout is not None
            status = GOOD
            while status != STOP:
                line = _line_in_time(git, git.stdout)
                if not line:
                    break
                lines.append(line)
                if line.strip() == _QUESTION:
                    status = judge(self._git("rev-parse", "HEAD"))
                    git.stdin.write(f"{status}\n")
                    git.stdin.flush()
            if status != STOP and git.wait() not in (0, _ONLY_SKIPPED):
                if git.returncode == -signal.SIGKILL:
                    self._timed_out(command)
                raise _failure(subprocess.CompletedProcess(command, git.returncode, "", "".join(lines)))

    def _git_folder(self) -> Path:
        return self.root / self._git("rev-parse", "--git-common-dir")

    def _remove(self, path: Path) -> None:
        with suppress(HarnessError):
            self._run("worktree", "remove", "--force", "--force", str(path))

    def _git(self, *arguments: str) -> str:
        done = self._run(*arguments)
        if done.returncode:
            raise _failure(done)
        return done.stdout.strip()

    def _is_so(self, *arguments: str) -> bool:
        done = self._run(*arguments)
        if done.returncode not in (0, 1):
            raise _failure(done)
        return done.returncode == 0

    def _command(self, *arguments: str) -> list[str]:
        return ["git", "-C", str(self.root), *_NO_HOOKS, *arguments]

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = self._command(*arguments)
        try:
            return subprocess.run(
                command,
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
            self._timed_out(command)

    def _timed_out(self, command: list[str]) -> NoReturn:
        raise CaseError(
            "git-timed-out",
            f"`git {_shown(command)}` in {self.root} did not end within {_GIT_TIMEOUT_S:g} s; check the "
            "disk and try again",
            stage="provision",
            field="bisect",
        ) from None


_ONLY_SKIPPED = 2


def _line_in_time(git: subprocess.Popen[str], output: IO[str]) -> str:
    """The next line of output, empty at its end; git is killed after a long silence."""
    timer = Timer(_GIT_TIMEOUT_S, _kill_group, (git,))
    timer.start()
    try:
        return output.readline()
    finally:
        timer.cancel()


def _kill_group(git: subprocess.Popen[str]) -> None:
    if git.poll() is None:
        os.killpg(git.pid, signal.SIGKILL)


def _shown(command: list[str]) -> str:
    return " ".join(command[3 + len(_NO_HOOKS) :])


def _failure(done: subprocess.CompletedProcess[str]) -> UsageError:
    says = next((line for line in done.stderr.splitlines() if line.startswith(_COMPLAINTS)), done.stderr)
    return UsageError(
        f"`git {_shown(done.args)}` failed in {done.args[2]}: "
        f"{first_line(says.strip()) or 'no message'}; fix that and try again",
        field="bisect",
    )
