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
from harness.errors import CaseError, first_line
from harness.host_facts import without_git
from harness.provision.temporary.reaper import RUN_FOLDER_VARIABLE
from harness.records.run_layout import RESULTS, RUN_FILE
from harness.stratbench_process import run_stratbench


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitRuns:
    """How an experiment is run at commits.

    Args:
        root: of the checkout.
        folder: a private one, with worktrees and run folders while the search lasts.
        experiment: the file of the experiment, the same for all commits.
        options: of `stratbench run`, beside the experiment and its folder.
        environ: of the process, to which the commit's code is added.
        until_s: by the monotonic clock, when runs must have ended; None for no such time.
    """

    root: Path
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
            stream = stack.enter_context(log.open("wb"))
            arguments = ("run", str(self.experiment), "--out", str(out), *self.options)
            try:
                run_stratbench(arguments, environ=self._environ(code), log=stream, timeout_s=left_s)
            except subprocess.TimeoutExpired:
                raise OutOfTimeError from None
        if not ((out / RUN_FILE).is_file() and (out / RESULTS).is_file()):
            raise CaseError("commit-does-not-run", _last_line(log), stage="run")
        return out

    def _environ(self, code: Path) -> dict[str, str]:
        # Before whatever is installed; and what lies in the working directory not before it, in workers too.
        paths = [str(code), *filter(None, [self.environ.get("PYTHONPATH")])]
        return {
            **without_git(self.environ),
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONSAFEPATH": "1",
            RUN_FOLDER_VARIABLE: str(self.folder),
        }


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return first_line(lines[-1] if lines else "")
