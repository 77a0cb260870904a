"""Messages between driver, actor and worker process, and the socket channel that carries them.

A message is an 8-byte length and its bytes, with one deadline for all of it.
"""

import errno
import pickle
import socket
import struct
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from harness.errors import CaseError, HarnessError, UsageError
from harness.worker.process.job import Args, Job, Result
from harness.worker.process.resource_errors import (
    refused_bytes,
    refused_memory,
    refusing_gpu,
    way_out_offline,
)
from strategies.user_errors import line_of_error


@dataclass(frozen=True, kw_only=True, slots=True)
class JobError:
    """An exception of a job as plain text, readable without the job's packages.

    Attributes:
        type: class name. kind, stage: fields of a `CaseError`, else None.
        usage: True if a user's file or option cannot be used; `field` names it.
        is_out_of_memory: True if the job was refused memory; type and message are the refusal's.
        gpu: device whose memory was refused, such as `GPU:0`; None for the host. refused_bytes: None if
            unknown.
        line: line of a user's file, such as `model.py:12`; empty if none is involved.
    """

    type: str
    message: str
    traceback: str
    kind: str | None = None
    stage: str | None = None
    usage: bool = False
    field: str | None = None
    is_out_of_memory: bool = False
    gpu: str | None = None
    refused_bytes: int | None = None
    line: str = ""

    @staticmethod
    def of(error: BaseException) -> "JobError":
        text = "".join(traceback.format_exception(error))
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            error = _disk_full(error)
        refused = None if isinstance(error, CaseError) else refused_memory(error)
        if refused is not None:
            # Intermediate code took it for a mistake of the user code that it ran.
            error = refused
        kind, stage = (error.kind, error.stage) if isinstance(error, CaseError) else (None, None)
        usage = isinstance(error, UsageError)
        message = error.message if isinstance(error, HarnessError) else str(error)
        return JobError(
            type=type(error).__name__,
            message=message + way_out_offline(error) if usage else message,
            traceback=text,
            kind=kind,
            stage=stage,
            usage=usage,
            field=error.field if isinstance(error, HarnessError) else None,
            is_out_of_memory=refused is not None,
            gpu=None if refused is None else refusing_gpu(str(refused)),
            refused_bytes=None if refused is None else refused_bytes(str(refused)),
            line=line_of_error(error),
        )


def _disk_full(error: OSError) -> CaseError:
    """A worker's full disk, as an error of the case."""
    what = error.filename or "a file that it writes"
    return CaseError(
        "disk-full",
        f"no room for {what}: {error.strerror}; make room on the worker's disk",
        stage="run",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class JobAnswer:
    """A pickled `JobError` or result, see `unpack_answer`."""

    payload: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Died:
    """The process ended before it answered.

    Attributes:
        exit_code: exit status, -n for signal n, as in `subprocess`; None if unknown.
        is_out_of_memory: True if the kernel killed it for its memory limit.
    """

    what: str
    exit_code: int | None
    is_out_of_memory: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Silent:
    """The process is alive, but did not answer in time.

    Attributes:
        is_stopped: True if a signal has stopped it.
    """

    waited_s: float
    is_stopped: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class CutOff:
    """The worker is alive, but its network carries nothing.

    Attributes:
        peer: worker that it cannot reach over the data network; None if the driver cannot reach it.
        waited_s: seconds of waiting for an answer.
    """

    peer: int | None
    waited_s: float


Reply: TypeAlias = JobAnswer | Died | Silent


def pack_job(job: Job[*Args, Result], args: tuple[*Args]) -> bytes:
    """Message with the request to run `job(state, *args)`."""
    return pickle.dumps((job, args), protocol=5)


def unpack_job(message: bytes | bytearray) -> tuple[Callable[..., object], tuple[object, ...]]:
    """Read a job; sender and receiver run the same trusted code."""
    job, args = pickle.loads(message)  # noqa: S301
    return job, args


def pack_answer(value: object) -> bytes:
    """Message with a result or a `JobError`; a result that cannot be pickled becomes an error."""
    try:
        return pickle.dumps(value, protocol=5)
    except Exception as error:  # noqa: BLE001  pickling runs the code of any class
        return pickle.dumps(JobError.of(error), protocol=5)


def unpack_answer(payload: bytes) -> object:
    """Read a result or a `JobError`."""
    return pickle.loads(payload)  # noqa: S301


_LENGTH = struct.Struct("<Q")


class ChannelClosedError(Exception):
    """The other end ended or closed the socket."""


def send_message(channel: socket.socket, payload: bytes, *, deadline_s: float | None = None) -> None:
    """Send one message.

    Args:
        deadline_s: time on `time.monotonic()`; None waits forever.
    Raises:
        ChannelClosedError: the other end is closed.
        TimeoutError: the receiver did not accept the message in time.
    """
    _set_timeout(channel, deadline_s)
    try:
        channel.sendall(_LENGTH.pack(len(payload)))
        channel.sendall(payload)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise ChannelClosedError from error


def receive_message(channel: socket.socket, *, deadline_s: float | None = None) -> bytearray:
    """Wait for one message; arguments and errors as in `send_message`."""
    (length,) = _LENGTH.unpack(_receive_exactly(channel, _LENGTH.size, deadline_s))
    return _receive_exactly(channel, length, deadline_s)


def _receive_exactly(channel: socket.socket, n_bytes: int, deadline_s: float | None) -> bytearray:
    buffer = bytearray(n_bytes)
    view = memoryview(buffer)
    while view:
        _set_timeout(channel, deadline_s)
        try:
            n_received = channel.recv_into(view)
        except ConnectionResetError as error:
            raise ChannelClosedError from error
        if n_received == 0:
            raise ChannelClosedError
        view = view[n_received:]
    return buffer


def _set_timeout(channel: socket.socket, deadline_s: float | None) -> None:
    if deadline_s is None:
        channel.settimeout(None)
        return
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        # A timeout of zero would mean "do not block" to the socket.
        raise TimeoutError
    channel.settimeout(left_s)
