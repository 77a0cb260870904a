"""Runs of one case with the code of commits, in processes without this code."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from harness.cli.nightly.checkout import Checkout, Commit
from harness.errors import CaseError, first_line
from harness.experiment.cases import Case
from harness.experiment.model import Experiment
from harness.experiment.references import StrategyRef, file_of
from harness.host_facts import own_checkout, without_git
from harness.processes import run_stratbench
from harness.records.comparison import MIN_REPEATS_INTERVAL
from harness.records.contained_files import open_to_write
from harness.records.run_documents import RESULTS, RUN_FILE
from harness.worker.process.os_process import RUN_FOLDER_VARIABLE


class OutOfTimeError(Exception):
    """No time is left to run another commit."""


def single_case(spec: Experiment, case: Case) -> Experiment:
    """Experiment with a single case, without evaluations after the measurement.

    It is measured in the same way, with enough repeats for an interval.

    Args:
        case: case of the experiment.
    """
    alone = spec.with_strategies(spec.baseline, case.strategy, baseline=spec.baseline)
    alone = alone.of_one(case.shape, case.computation, case.scenario)
    only_timed = dict.fromkeys(("trace", "aa", "observer", "exposed_comm", "evaluate"), False)
    repeats = max(spec.measure.repeats, MIN_REPEATS_INTERVAL)
    return alone.model_copy(
        update={
            "workloads": (case.workload,),
            "measure": alone.measure.model_copy(update={**only_timed, "repeats": repeats}),
        }
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedExperiment:
    """Experiment whose references to files of a checkout are valid in any worktree.

    Attributes:
        start: working directory of its runs within the worktree; None if they need no file of it.
    """

    spec: Experiment
    start: Path | None


def placed_in(root: Path, spec: Experiment, *, working_directory: Path) -> PlacedExperiment:
    """Make references to files of a checkout relative to the runs' working directory, and others absolute.

    This directory is the user's, if it is in the checkout, or else the checkout's root.
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
    """Runs of an experiment at commits.

    Args:
        root: root of the checkout. worktree: worktree of the search, at the commit of the current run.
        is_own: True for stratbench's checkout, so that a commit's code runs the experiment; False for a
            user's files, which this process's stratbench runs.
        start: working directory of runs within the worktree; None for that of this process.
        folder: temporary folder for run folders of the search.
        experiment: file of the experiment, the same for all commits.
        options: options of `stratbench run`, without the experiment and its folder.
        environ: environment of the process, to which the commit's code is added.
        until_s: time limit of all runs, on the monotonic clock; None for no limit.
    """

    root: Path
    worktree: Checkout
    is_own: bool = True
    start: Path | None = None
    folder: Path
    experiment: Path
    options: tuple[str, ...]
    environ: Mapping[str, str]
    until_s: float | None

    def run(self, commit: Commit) -> Path:
        """Run the experiment with a commit's code.

        Returns:
            The run folder, even if not all of its cases have a result.
        Raises:
            OutOfTimeError: the time limit was reached; the run was ended. CaseError: that code cannot run it.
        """
        left_s = None if self.until_s is None else self.until_s - time.monotonic()
        if left_s is not None and left_s <= 0:
            raise OutOfTimeError
        out = self.folder / "runs" / commit.sha[:12]
        log = self.folder / f"{commit.sha[:12]}.log"
        self.worktree.check_out(commit)
        start = None if self.start is None else self.worktree.root / self.start
        if start is not None and not start.is_dir():
            raise CaseError("commit-does-not-run", f"it has no folder {self.start}", stage="run")
        arguments = ("run", str(self.experiment), "--out", str(out), *self.options)
        try:
            with os.fdopen(open_to_write(log, is_replaced=True), "wb") as stream:
                run_stratbench(arguments, environ=self._environ(), folder=start, log=stream, timeout_s=left_s)
        except subprocess.TimeoutExpired:
            raise OutOfTimeError from None
        finally:
            # Files left by the run would keep git from checking out the next commit.
            self.worktree.check_out(commit)
        if not ((out / RUN_FILE).is_file() and (out / RESULTS).is_file()):
            raise CaseError("commit-does-not-run", _last_line(log), stage="run")
        return out

    def _environ(self) -> dict[str, str]:
        # The path has the commit's code before installed packages, and no working directory before it.
        present = filter(None, self.environ.get("PYTHONPATH", "").split(os.pathsep))
        own = self.worktree.root if self.is_own else own_checkout()
        paths = [str(own), *(str(self._in_worktree(Path(path))) for path in present)]
        return {
            **without_git(self.environ),
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONSAFEPATH": "1",
            RUN_FOLDER_VARIABLE: str(self.folder),
        }

    def _in_worktree(self, path: Path) -> Path:
        """Worktree's copy of a folder of the checkout; any other folder unchanged."""
        whole = path.resolve()
        if whole.is_relative_to(self.root):
            return self.worktree.root / whole.relative_to(self.root)
        return path.absolute()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return first_line(lines[-1] if lines else "")
