"""Failures of workers in a case, each with its own type, and of a run before it has workers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import Signals

from harness.errors import EXIT_MISSING, OUT_OF_MEMORY, CaseError, HarnessError
from harness.worker.process.messages import CutOff, Died, JobError, Silent
from strategies.user_errors import graph_error

N_LOG_LINES = 60
USER_ERROR = "user-error"
"""Kind of a failure that the user's own file or option caused."""
REFUSED_STEP = "refused-step"
"""Kind of a failure by chance: TensorFlow took a step for one that it had seen before."""
# Its master numbers a step by a generator that it seeds with 32 random bits for each, and a server refuses
# a number that is among the last 100,000: of n steps two are alike with a chance of about n² / 2³³.
SEEN_TWICE = "The same RunGraph (Worker) request was received twice"
HEAD_GONE = "cluster: its head must answer, and has ended; go on with --resume once it is up"
HOST_LOG = "output.log"
"""Name of what is kept of a worker's host, in a folder of its own."""
_LOG_TAIL_BYTES = 16384


class ProvisionError(HarnessError):
    """Workers cannot be had here.

    Args:
        problem: what must be there and what was found, in one line.
        way_out: what to do about it, where the problem does not say so itself.
    """

    exit_status = EXIT_MISSING

    def __init__(self, problem: str, *, way_out: str = "", field: str | None = None) -> None:
        super().__init__(f"{problem}; {way_out}" if way_out else problem, field=field)
        self.problem = problem
        self.way_out = way_out


class WorkerDied(CaseError):  # noqa: N818  named as the record names it
    """A process of a worker ended while its case ran.

    Attributes:
        worker: whose. exit_code: of it; negative for a signal, None where nobody knows.
    """

    worker: int | None = None
    exit_code: int | None = None


class WorkerOutOfMemory(WorkerDied):
    """The kernel ended a worker's process, since the worker took more memory than it may."""


class WorkerUnresponsive(CaseError):  # noqa: N818
    """A process of a worker lives and did not answer in time."""


class LinkDown(CaseError):  # noqa: N818
    """A worker cannot be reached from another any more."""


class JobFailed(CaseError):  # noqa: N818
    """A job raised; its traceback is a note."""


class JobOutOfMemory(JobFailed):
    """A job asked for memory and was refused it."""


class GpuOutOfMemory(JobOutOfMemory):
    """A job asked for memory of a GPU, which other processes may hold, and was refused it."""


class RayEndedError(ConnectionError):
    """A call of Ray's cannot be made any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Awaited:
    """Request to a worker that failed during it.

    Attributes:
        what: as a message says it.
        waited_s: until the failure.
        log: of the process concerned, None when it had none yet.
        is_log_kept: whether the log is still there after the command.
    """

    worker: int
    what: str
    waited_s: float
    log: Path | None
    stage: str
    is_log_kept: bool = True


def worker_died(died: Died, awaited: Awaited) -> WorkerDied:
    """Describe a death, with the last lines of the log."""
    if died.is_out_of_memory:
        error: WorkerDied = WorkerOutOfMemory(
            OUT_OF_MEMORY,
            f"worker {awaited.worker}: its {died.what} must stay within cluster.memory_per_worker, and was "
            f"killed for more {awaited.waited_s:.1f} s into {awaited.what}; raise it, or make batch or model "
            "smaller",
            stage=awaited.stage,
        )
        _add_log(error, awaited.log)
        return error
    error = WorkerDied(
        "worker-died",
        f"worker {awaited.worker}: its {died.what} {_ending(died.exit_code)} {awaited.waited_s:.1f} s into "
        f"{awaited.what}; {_where_to_look(awaited)}",
        stage=awaited.stage,
    )
    error.worker, error.exit_code = awaited.worker, died.exit_code
    _add_log(error, awaited.log)
    return error


def worker_unresponsive(silent: Silent, awaited: Awaited) -> WorkerUnresponsive:
    """Describe a silence, with the last lines of the log; they hold the stacks of its threads."""
    what = "its process is stopped and gave no" if silent.is_stopped else "no"
    longer = "" if silent.is_stopped else "if it was only slow, wait longer with --timeout-factor 4; "
    error = WorkerUnresponsive(
        "unresponsive",
        f"worker {awaited.worker}: {what} answer from {awaited.what} within {silent.waited_s:.1f} s; {longer}"
        f"{_where_to_look(awaited)}",
        stage=awaited.stage,
    )
    _add_log(error, awaited.log)
    return error


def link_down(cut: CutOff, awaited: Awaited) -> LinkDown:
    """Describe a link that carries nothing, with the last lines of the log."""
    rule = (
        "it must be reached from this host over its control network"
        if cut.peer is None
        else f"worker {cut.peer} must be reached over their data network"
    )
    error = LinkDown(
        "link-down",
        f"worker {awaited.worker}: {rule}, got no answer for {cut.waited_s:.1f} s, {awaited.waited_s:.1f} s "
        f"into {awaited.what}; {_where_to_look(awaited)}",
        stage=awaited.stage,
    )
    _add_log(error, awaited.log)
    return error


def job_failed(failed: JobError, awaited: Awaited) -> CaseError:
    """Turn a job's error into a failure of the case; a `CaseError` keeps its kind, stage and words."""
    if failed.kind is not None:
        error: CaseError = CaseError(
            failed.kind, failed.message, stage=failed.stage or awaited.stage, field=failed.field
        )
    elif SEEN_TWICE in failed.message:
        error = JobFailed(
            REFUSED_STEP,
            f"worker {awaited.worker}: TensorFlow must take every step for a new one, and by chance took one "
            f"in {awaited.what} for one before; repeat the case with --resume",
            stage=awaited.stage,
        )
    elif failed.gpu is not None:
        error = GpuOutOfMemory(OUT_OF_MEMORY, _refused_by_gpu(failed, awaited), stage=awaited.stage)
    elif failed.is_out_of_memory:
        error = JobOutOfMemory(
            OUT_OF_MEMORY,
            f"worker {awaited.worker}: {awaited.what} was refused memory ({_refusal(failed)}); lower "
            "batch_size, or give workers more memory",
            stage=awaited.stage,
        )
    elif failed.usage:
        error = CaseError(USER_ERROR, failed.message, stage=awaited.stage, field=failed.field)
    else:
        error = JobFailed(
            "worker-error",
            f"worker {awaited.worker}: {awaited.what} raised {failed.type}: {graph_error(failed.message)}",
            stage=awaited.stage,
        )
    error.add_note(f"traceback of worker {awaited.worker}:\n{failed.traceback.rstrip()}")
    return error


def _refused_by_gpu(failed: JobError, awaited: Awaited) -> str:
    asked = "" if failed.refused_bytes is None else f"{failed.refused_bytes / 1e9:.3g} GB of "
    return (
        f"worker {awaited.worker}: {awaited.what} was refused {asked}the memory of {failed.gpu} "
        f"({_refusal(failed)}); lower batch_size, or set accumulate=2 for micro-batches where the "
        "strategy has it"
    )


def _refusal(failed: JobError) -> str:
    reason = graph_error(failed.message) if failed.message.strip() else failed.type
    return f"{reason}, at {failed.line}" if failed.line and failed.line not in reason else reason


def log_tail(log: Path, n_lines: int = N_LOG_LINES) -> Sequence[str]:
    """Read the last lines of a log; none when it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()[-n_lines:]
    except OSError:
        return ()


def _where_to_look(awaited: Awaited) -> str:
    if not awaited.is_log_kept:
        return "--debug shows the end of its log"
    log = awaited.log
    if log is None:
        where = "its log"
    elif log.name == HOST_LOG:
        where = "/".join(log.parts[-3:])  # each host has one
    else:
        where = log.name
    return f"see {where}, then repeat the case with --resume"


def _add_log(error: CaseError, log: Path | None) -> None:
    lines = log_tail(log) if log else ()
    if log and lines:
        error.add_note(f"last lines of {log}:\n" + "\n".join(lines))


def _ending(exit_code: int | None) -> str:
    if exit_code is None:
        return "ended"
    if exit_code >= 0:
        return f"ended with exit status {exit_code}"
    try:
        return f"was killed by {Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"
