"""An experiment run by the code of one commit, in a process that has none of ours."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from harness.bisection.checkout import Checkout, Commit
from harness.bisection.search import OutOfTimeError
from harness.contained_files import open_to_write
from harness.errors import CaseError, first_line
from harness.host_facts import own_checkout, without_git
from harness.records.run_layout import RESULTS, RUN_FILE
from harness.stratbench_process import run_stratbench
from harness.worker.process.os_process import RUN_FOLDER_VARIABLE


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
