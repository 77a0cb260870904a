"""Saving and restoring of checkpoints by the driver; see also `harness.worker.session.checkpoint`."""

from pathlib import Path

from harness.errors import CaseError, UsageError
from harness.measure.timeouts import Timeouts
from harness.provision.protocols import ProcessSet
from harness.worker.jobs import after_repeats
from harness.worker.jobs.training import settle
from strategies.plan.schema import StepSummary

WRITER = 0


def require(path: Path) -> None:
    """Require a checkpoint, before anything is started for it.

    Raises:
        UsageError: there is none.
    """
    whole = path.absolute()
    is_prefix = bool(whole.name) and whole.with_name(f"{whole.name}.index").is_file()
    if is_prefix or (path / "checkpoint").is_file():
        return
    why = "no file `checkpoint` in it" if path.is_dir() else "no such folder or prefix"
    raise UsageError(
        f"must be a checkpoint, got {path} ({why}); name a folder that `run --checkpoint` wrote, or the "
        "prefix of a checkpoint's files",
        field="restore",
    )


def require_saved(folder: Path) -> None:
    """Require that the driver can see a checkpoint that a worker has written.

    Raises:
        CaseError: `checkpoint-lost`.
    """
    if not (folder / "checkpoint").is_file():
        raise CaseError(
            "checkpoint-lost",
            f"{folder} has no checkpoint from worker {WRITER}; check that its node is up, then repeat the "
            "case with --resume",
            stage="checkpoint",
        )


def save(processes: ProcessSet, step: StepSummary, folder: Path, n_steps: int, timeouts: Timeouts) -> None:
    """Write the state of real workers into a folder; no step may be in flight.

    Every worker sends the values that only it has; the first worker adds the common ones and writes.

    Args:
        n_steps: steps so far, those before a restored checkpoint included.
    Raises:
        CaseError: `checkpoint-unwritable`; or see `ProcessSet.call`.
    """
    shared = frozenset(v.name for v in step.variables if v.rule != "per-replica")
    n_workers = len(processes.pids)
    processes.call(settle, [(n_workers,)] * n_workers, timeout_s=timeouts.save_s, stage="checkpoint")
    args = [(shared, task == WRITER) for task in range(n_workers)]
    gathered = processes.call(
        after_repeats.gather_checkpoint, args, timeout_s=timeouts.save_s, stage="checkpoint"
    )
    model = frozenset(v.name for v in step.variables)
    processes.call_one(
        WRITER,
        after_repeats.write_checkpoint,
        (str(folder.absolute()), model, gathered, n_steps),
        timeout_s=timeouts.save_s,
        stage="checkpoint",
    )
