"""Failures of workers, and of starting them, with instructions for the user."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import Signals

from harness.errors import EXIT_MISSING, OUT_OF_MEMORY, CaseError, HarnessError
from harness.worker.process.messages import CutOff, Died, JobError, Silent
from strategies.user_errors import graph_error

N_LOG_LINES = 60
USER_ERROR = "user-error"
"""Failure type for the user's own file or option."""
REFUSED_STEP = "refused-step"
"""Failure type of a rare coincidence: TensorFlow mistook a step for an earlier one."""
# TensorFlow's master draws step ids from generators with 32-bit seeds, and a server refuses ids among the
# last 100,000: n steps contain two equal ids with a probability of about n² / 2³³.
STEP_ID_COLLISION = "The same RunGraph (Worker) request was received twice"
HEAD_GONE = "cluster: its head must answer, got no answer; restart it, then continue with --resume"
HOST_LOG = "output.log"
"""Name of the folder with a worker's host's logs."""
_LOG_TAIL_BYTES = 16384


class ProvisionError(HarnessError):
    """Workers cannot be started here.

    Args:
        problem: one line with the requirement and the actual state.
        way_out: instruction for the user, if the problem does not contain one.
    """

    exit_status = EXIT_MISSING

    def __init__(self, problem: str, *, way_out: str = "", field: str | None = None) -> None:
        super().__init__(f"{problem}; {way_out}" if way_out else problem, field=field)
        self.problem = problem
        self.way_out = way_out


class WorkerFailure(CaseError):  # noqa: N818  named as the record names it
    """A failure of a worker: of its process, host, link or job.

    Attributes:
        worker: number of the worker in the session.
        cause: event that took the place of its answer.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        stage: str,
        worker: int,
        cause: Died | Silent | CutOff | JobError,
        field: str | None = None,
    ) -> None:
        super().__init__(kind, message, stage=stage, field=field)
        self.worker, self.cause = worker, cause

    @property
    def is_lost(self) -> bool:
        """True if the worker itself is gone, not only its job."""
        return not isinstance(self.cause, JobError)

    @property
    def was_refused_memory(self) -> bool:
        """True if its job was refused memory; False if the kernel killed it for memory."""
        return isinstance(self.cause, JobError) and self.kind == OUT_OF_MEMORY


def was_refused_by_gpu(error: CaseError | None) -> bool:
    """True if a job was refused memory of a GPU, which other processes may hold."""
    if not isinstance(error, WorkerFailure) or error.kind != OUT_OF_MEMORY:
        return False
    return isinstance(error.cause, JobError) and error.cause.gpu is not None


class RayEndedError(ConnectionError):
    """Ray has ended and no longer accepts calls."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Awaited:
    """Request to a worker that failed before it was answered.

    Attributes:
        what: noun phrase for the request in messages, such as "its start".
        waited_s: seconds until the failure.
        log: log of the process; None if it had none yet.
        is_log_kept: True if the log remains after the command.
    """

    worker: int
    what: str
    waited_s: float
    log: Path | None
    stage: str
    is_log_kept: bool = True


def failure_of(cause: object, awaited: Awaited) -> CaseError:
    """Failure in place of an answer, with the job's traceback or the last lines of the log.

    A job's `CaseError` keeps its kind, stage and message.
    """
    if isinstance(cause, JobError):
        error = _of_job(cause, awaited)
        error.add_note(f"traceback of worker {awaited.worker}:\n{cause.traceback.rstrip()}")
        return error
    if not isinstance(cause, Died | Silent | CutOff):
        raise TypeError(f"worker {awaited.worker} answered {awaited.what} with {type(cause).__name__}")
    kind, sentence = _loss(cause, awaited)
    error = WorkerFailure(
        kind, f"worker {awaited.worker}: {sentence}", stage=awaited.stage, worker=awaited.worker, cause=cause
    )
    _add_log(error, awaited.log)
    return error


def _of_job(failed: JobError, awaited: Awaited) -> CaseError:
    if failed.kind is not None:
        stage = failed.stage or awaited.stage
        return CaseError(failed.kind, failed.message, stage=stage, field=failed.field)
    if failed.usage and STEP_ID_COLLISION not in failed.message:
        return CaseError(USER_ERROR, failed.message, stage=awaited.stage, field=failed.field)
    kind, sentence = _refusal(failed, awaited.what)
    return WorkerFailure(
        kind, f"worker {awaited.worker}: {sentence}", stage=awaited.stage, worker=awaited.worker, cause=failed
    )


def _loss(cause: Died | Silent | CutOff, awaited: Awaited) -> tuple[str, str]:
    """Kind and message for a worker that no longer answers."""
    so_far = f"{awaited.waited_s:.1f} s into {awaited.what}"
    match cause:
        case Died(is_out_of_memory=True):
            return OUT_OF_MEMORY, (
                f"its {cause.what} was killed for exceeding cluster.memory_per_worker {so_far}; raise "
                "cluster.memory_per_worker, or lower batch_size"
            )
        case Died():
            ending = _ending(cause.exit_code)
            return "worker-died", f"its {cause.what} {ending} {so_far}; {_where_to_look(awaited)}"
        case Silent():
            what = "its process is stopped and gave no" if cause.is_stopped else "no"
            longer = "" if cause.is_stopped else "if it was only slow, wait longer with --timeout-factor 4; "
            return "unresponsive", (
                f"{what} answer from {awaited.what} within {cause.waited_s:.1f} s; "
                f"{longer}{_where_to_look(awaited)}"
            )
        case CutOff():
            loss = (
                "this host lost it on the control network"
                if cause.peer is None
                else f"it lost worker {cause.peer} on the data network"
            )
            return "link-down", (
                f"{loss}: no answer for {cause.waited_s:.1f} s, {so_far}; {_where_to_look(awaited)}"
            )


def _refusal(failed: JobError, what: str) -> tuple[str, str]:
    """Kind and message for a job that raised an exception."""
    if STEP_ID_COLLISION in failed.message:
        return REFUSED_STEP, (
            f"TensorFlow mistook a step in {what} for an earlier one, by a collision of random ids; repeat "
            "the case with --resume"
        )
    if failed.gpu is not None:
        size = "" if failed.refused_bytes is None else f"{failed.refused_bytes / 1e9:.3g} GB of "
        return OUT_OF_MEMORY, (
            f"{what} was refused {size}the memory of {failed.gpu} ({_reason(failed)}); lower batch_size, or "
            "set accumulate=2 for micro-batches where the strategy has it"
        )
    if failed.is_out_of_memory:
        return OUT_OF_MEMORY, (
            f"{what} was refused memory ({_reason(failed)}); lower batch_size, or give workers more memory"
        )
    return "worker-error", f"{what} raised {failed.type}: {graph_error(failed.message)}"


def _reason(failed: JobError) -> str:
    reason = graph_error(failed.message) if failed.message.strip() else failed.type
    return f"{reason}, at {failed.line}" if failed.line and failed.line not in reason else reason


def log_tail(log: Path, n_lines: int = N_LOG_LINES) -> Sequence[str]:
    """Last lines of a log; empty if it cannot be read."""
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
