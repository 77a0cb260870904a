"""Failures with their causes in the run: a batch that is too large, an injected fault, a full disk."""

import contextlib
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.errors import OUT_OF_MEMORY, CaseError, StoreError
from harness.provision.failures import WorkerFailure
from harness.records.record import DIVERGED_KINDS, KILLED_BY_FAULT
from harness.worker.process.messages import Died
from strategies.plan.faults import Fault, sending_wrong


@contextlib.contextmanager
def naming_batch_size(workload: str, batch_size: int) -> Iterator[None]:
    """Name the batch size in out-of-memory failures of this context; see `with_batch_size`."""
    try:
        yield
    except CaseError as error:
        named = with_batch_size(error, workload, batch_size)
        if named is error:
            raise
        raise named from error


def with_batch_size(error: CaseError, workload: str, batch_size: int) -> CaseError:
    """The same failure, with the batch size in the message if memory was refused.

    Args:
        batch_size: examples in the global batch.
    """
    if not isinstance(error, WorkerFailure) or not error.was_refused_memory or error.field is not None:
        return error
    named = WorkerFailure(
        error.kind,
        f"must fit in memory, got {batch_size}: {error.message}",
        stage=error.stage,
        worker=error.worker,
        cause=error.cause,
        field=f"{workload}.batch_size",
    )
    return _with_notes(named, error)


def with_fault_cause(error: CaseError, faults: Sequence[Fault]) -> CaseError:
    """Add the injected fault that caused a failure, if one did; return any other failure unchanged."""
    named = error
    if error.kind in DIVERGED_KINDS and sending_wrong(faults):
        fault_list = ", ".join(f"worker {fault.worker} {fault}" for fault in faults)
        named = CaseError(error.kind, f"under faults ({fault_list}): {error.message}", stage=error.stage)
    elif isinstance(error, WorkerFailure):
        named = _killed(error, faults) or error
    return _with_notes(named, error)


def _killed(error: WorkerFailure, faults: Sequence[Fault]) -> CaseError | None:
    injected = (fault for fault in faults if fault.kind == "dead" and fault.worker == error.worker)
    fault = next(injected, None)
    by_signal = isinstance(error.cause, Died) and error.cause.exit_code == -signal.SIGKILL
    if fault is None or not by_signal or error.kind == OUT_OF_MEMORY or error.stage != "run":
        return None
    return CaseError(
        KILLED_BY_FAULT,
        f"worker {fault.worker}: the injected fault killed it at step {fault.from_step}, and no strategy "
        "continues without a worker; use kind drop to lose gradients only",
        stage=error.stage,
    )


def _with_notes(named: CaseError, error: CaseError) -> CaseError:
    for note in () if named is error else getattr(error, "__notes__", ()):
        named.add_note(note)
    return named


@contextlib.contextmanager
def run_folder_errors(run_dir: Path, way_out: str = "continue with --resume") -> Iterator[None]:
    """Report in one line that files cannot be written to the run folder.

    Args:
        way_out: last part of the instruction, once the folder can be written to again.
    Raises:
        StoreError: a file could not be written.
    """
    try:
        yield
    except OSError as error:
        first = "put it back" if isinstance(error, FileNotFoundError) else "make room"
        if isinstance(error, IsADirectoryError | FileExistsError):
            first = "remove that"
        raise StoreError(
            f"{error.filename2 or run_dir} cannot be written: {error.strerror or error}; {first} "
            f"and {way_out}",
            field="out",
        ) from error
