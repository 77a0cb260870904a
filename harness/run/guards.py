"""What failures become: our own mistake that of one case, a file that cannot be written that of the run."""

import contextlib
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.errors import CaseError, HarnessError, StoreError, first_line
from harness.provision.failures import JobOutOfMemory, WorkerDied, WorkerOutOfMemory
from harness.records.record import KILLED_BY_FAULT, WENT_TO_PIECES
from strategies.plan.faults import Fault


def unexpected(error: Exception) -> CaseError:
    """Our own mistake, as the failure of the case that met it."""
    failure = CaseError(
        "internal-error",
        f"unexpected {type(error).__name__}: {first_line(str(error))}; report the traceback in failure.log",
        stage="run",
    )
    failure.add_note("".join(traceback.format_exception(error)).rstrip())
    return failure


@contextlib.contextmanager
def own_mistakes() -> Iterator[None]:
    """Make our own mistake the failure of one case: a night's run must not end by it.

    Raises:
        CaseError: for whatever is no error of the harness.
    """
    try:
        yield
    except HarnessError:
        raise
    except Exception as error:
        raise unexpected(error) from error


@contextlib.contextmanager
def naming_batch(workload: str, batch_size: int) -> Iterator[None]:
    """Name the batch in failures for lack of memory; see `of_batch`.

    Raises:
        CaseError: whatever was raised.
    """
    try:
        yield
    except CaseError as error:
        named = of_batch(error, workload, batch_size)
        if named is error:
            raise
        raise named from error


def of_batch(error: CaseError, workload: str, batch_size: int) -> CaseError:
    """The same failure, with the batch that was too large where memory was refused.

    Args:
        batch_size: examples in the global batch.
    """
    if not isinstance(error, JobOutOfMemory) or error.field is not None:
        return error
    named = JobOutOfMemory(
        error.kind,
        f"must be as many examples as memory holds, got {batch_size}: {error.message}",
        stage=error.stage,
        field=f"{workload}.batch_size",
    )
    for note in getattr(error, "__notes__", ()):
        named.add_note(note)
    return named


def of_faults(error: CaseError, faults: Sequence[Fault]) -> CaseError:
    """The same failure, or what faults have to do with it: a worker killed, a training that they ruin."""
    if error.kind in WENT_TO_PIECES and any(fault.place != "process" for fault in faults):
        told = ", ".join(f"worker {fault.worker} {fault}" for fault in faults)
        message = f"{error.message.partition(';')[0]}; with faults ({told}) that may be what they come to"
        return CaseError(error.kind, message, stage=error.stage)
    dead = next((fault for fault in faults if fault.kind == "dead"), None)
    if dead is None or not isinstance(error, WorkerDied) or isinstance(error, WorkerOutOfMemory):
        return error
    return CaseError(
        KILLED_BY_FAULT,
        f"worker {dead.worker}: its fault kills it at step {dead.from_step}, and no strategy goes on without "
        f"one of its workers, got {error.message.partition(';')[0]}; compare kind drop, which loses "
        "gradients",
        stage=error.stage,
    )


@contextlib.contextmanager
def storing(run_dir: Path) -> Iterator[None]:
    """Say in one line that the run folder takes no more files.

    Raises:
        StoreError: a file could not be written.
    """
    try:
        yield
    except OSError as error:
        way_out = "put it back" if isinstance(error, FileNotFoundError) else "make room"
        raise StoreError(
            f"{run_dir} must take more files, got {error.strerror or error}; {way_out} and go on "
            "with --resume",
            field="out",
        ) from error
