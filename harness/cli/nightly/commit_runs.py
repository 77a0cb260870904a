"""Runs of one case by the code of commits, each in a git worktree."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from harness.contained_files import open_to_write
from harness.errors import CaseError, HarnessError, MissingError, UsageError, first_line
from harness.experiment.cases import Case
from harness.experiment.model import Experiment
from harness.experiment.references import StrategyRef, file_of
from harness.host_facts import own_checkout, without_git
from harness.processes import run_stratbench
from harness.records.run_documents import RESULTS, RUN_FILE
from harness.worker.process.os_process import RUN_FOLDER_VARIABLE

Finding = Literal["good", "bad", "untold"]


class OutOfTimeError(Exception):
    """There is no time to look at one more commit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Narrowed:
    """How far the first bad one was narrowed down.

    Args:
        last_good, first_known_bad: indices of the nearest two that were looked at.
        is_cut_short: whether time was up before there was nothing left to look at.
    """

    last_good: int
    first_known_bad: int
    is_cut_short: bool = False

    @property
    def suspects(self) -> range:
        """Indices of those of which one is the first bad one."""
        return range(self.last_good + 1, self.first_known_bad + 1)


def narrowed(n_commits: int, look: Callable[[int], Finding]) -> Narrowed:
    """Find the first bad one between a good one and a bad one, by as few looks as can be.

    Args:
        n_commits: in a row, of which the first is good and the last is bad.
        look: what one of those between is; those untold are passed over. It may raise `OutOfTimeError`.
    """
    good, bad = 0, n_commits - 1
    untold: set[int] = set()
    while left := [index for index in range(good + 1, bad) if index not in untold]:
        index = _middle(left, good, bad)
        try:
            finding = look(index)
        except OutOfTimeError:
            return Narrowed(last_good=good, first_known_bad=bad, is_cut_short=True)
        if finding == "good":
            good = index
        elif finding == "bad":
            bad = index
        else:
            untold.add(index)
    return Narrowed(last_good=good, first_known_bad=bad)


def _middle(left: Sequence[int], good: int, bad: int) -> int:
    """Of those left, the one nearest to halfway."""
    return min(left, key=lambda index: abs(2 * index - good - bad))


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


def single_case(spec: Experiment, case: Case) -> Experiment:
    """The experiment of one case, measured as before, without what is only looked at afterwards.

    Args:
        case: one of the experiment's.
    """
    alone = spec.with_strategies(spec.baseline, case.strategy, baseline=spec.baseline)
    alone = alone.of_one(case.shape, case.computation, case.scenario)
    only_timed = dict.fromkeys(("trace", "aa", "observer", "exposed_comm", "evaluate"), False)
    return alone.model_copy(
        update={
            "workloads": (case.workload,),
            "measure": alone.measure.model_copy(update=only_timed),
        }
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedExperiment:
    """An experiment whose references to files of a checkout hold in any worktree of it.

    Attributes:
        start: working directory of its runs within the worktree; None where they need no file of it.
    """

    spec: Experiment
    start: Path | None


def placed_in(root: Path, spec: Experiment, *, working_directory: Path) -> PlacedExperiment:
    """Write references to files of a checkout relative to where runs start, and others in full.

    Runs start where the person did, if that is in the checkout, otherwise at its root.
    """
    files = [ref.reference for ref in spec.workloads if ref.is_path]
    files += [ref.name for ref in spec.strategies if ref.is_file]
    if not any(file_of(reference).resolve().is_relative_to(root) for reference in files):
        return PlacedExperiment(spec=spec, start=None)
    here = working_directory.resolve()
    start = here.relative_to(root) if here.is_relative_to(root) else Path()

    def placed(reference: str) -> str:
        file = file_of(reference).resolve()
        _, colon, attribute = reference.partition(":")
        path = os.path.relpath(file, root / start) if file.is_relative_to(root) else file
        return f"{path}{colon}{attribute}"

    def placed_strategy(ref: StrategyRef) -> StrategyRef:
        return replace(ref, name=placed(ref.name)) if ref.is_file else ref

    workloads = (
        replace(ref, reference=placed(ref.reference)) if ref.is_path else ref for ref in spec.workloads
    )
    moved = spec.with_strategies(
        *map(placed_strategy, spec.strategies), baseline=placed_strategy(spec.baseline)
    )
    return PlacedExperiment(spec=moved.model_copy(update={"workloads": tuple(workloads)}), start=start)


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitRuns:
    """How an experiment is run at commits.

    Args:
        root: of the checkout.
        is_own: it is stratbench's, so that a commit's code runs the experiment; otherwise it holds a user's
            files, which this process's stratbench runs.
        start: working directory of runs within a commit's files; None stays in that of this process.
        folder: a private one, with worktrees and run folders while the search lasts.
        experiment: the file of the experiment, the same for all commits.
        options: of `stratbench run`, beside the experiment and its folder.
        environ: of the process, to which the commit's code is added.
        until_s: by the monotonic clock, when runs must have ended; None for no such time.
    """

    root: Path
    is_own: bool = True
    start: Path | None = None
    folder: Path
    experiment: Path
    options: tuple[str, ...]
    environ: Mapping[str, str]
    until_s: float | None

    def run(self, commit: Commit) -> Path:
        """Run the experiment by a commit's code.

        Returns:
            the run folder, whether all its cases have a result or not.
        Raises:
            OutOfTimeError: it could not end in time, and was ended. CaseError: that code does not run it.
        """
        left_s = None if self.until_s is None else self.until_s - time.monotonic()
        if left_s is not None and left_s <= 0:
            raise OutOfTimeError
        out = self.folder / "runs" / commit.sha[:12]
        log = self.folder / f"{commit.sha[:12]}.log"
        with ExitStack() as stack:
            checkout = Checkout(root=self.root, environ=self.environ)
            code = stack.enter_context(checkout.checked_out(commit, self.folder))
            start = None if self.start is None else code / self.start
            if start is not None and not start.is_dir():
                raise CaseError("commit-does-not-run", f"it has no folder {self.start}", stage="run")
            stream = stack.enter_context(os.fdopen(open_to_write(log, is_replaced=True), "wb"))
            arguments = ("run", str(self.experiment), "--out", str(out), *self.options)
            try:
                run_stratbench(
                    arguments, environ=self._environ(code), folder=start, log=stream, timeout_s=left_s
                )
            except subprocess.TimeoutExpired:
                raise OutOfTimeError from None
        if not ((out / RUN_FILE).is_file() and (out / RESULTS).is_file()):
            raise CaseError("commit-does-not-run", _last_line(log), stage="run")
        return out

    def _environ(self, code: Path) -> dict[str, str]:
        # Before whatever is installed; and what lies in the working directory not before it, in workers too.
        given = filter(None, self.environ.get("PYTHONPATH", "").split(os.pathsep))
        own = code if self.is_own else own_checkout()
        paths = [str(own), *(str(self._at_commit(Path(path), code)) for path in given)]
        return {
            **without_git(self.environ),
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONSAFEPATH": "1",
            RUN_FOLDER_VARIABLE: str(self.folder),
        }

    def _at_commit(self, path: Path, code: Path) -> Path:
        """A folder of the checkout as a commit has it; any other as it is."""
        whole = path.resolve()
        return code / whole.relative_to(self.root) if whole.is_relative_to(self.root) else path.absolute()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return first_line(lines[-1] if lines else "")
