"""Forked process of a worker, as seen by its actor: channel, signals and end.

Threads of the actor share it, so that it can be killed while another waits for its answer.
"""

import contextlib
import os
import select
import signal
import socket
import threading
import time
from pathlib import Path

from harness.worker.process import messages, os_process, subreaper
from harness.worker.process.messages import Died, JobAnswer, Silent

EXIT_NEWS_S = subreaper.ENDED_WITHIN_S
"""Seconds from a closed channel to the exit status, which the subreaper passes on by its own end."""
STOPPED_S = 10.0
"""Seconds that a process may be stopped by a signal before it counts as failed."""
_CHECK_S = 0.5
_STACKS_S = 0.3  # for a silent process to write all stacks into its log, once it has begun
_FIRST_STACK_S = 3.0  # to begin, which may be delayed on a busy machine


class ForkedProcess:
    """One process, from its fork until `close`.

    Attributes:
        exited: event set when the process has ended.
    Args:
        pidfd: descriptor opened before the process could be reaped, because its id may be reused later.
        jobs: the actor's end of the channel.
        log_path: log of the process.
    """

    def __init__(self, pid: int, pidfd: int, jobs: socket.socket, log_path: str) -> None:
        self.pid = pid
        self.exited = threading.Event()
        self._jobs = jobs
        self._log_path = log_path
        self._pidfd = pidfd
        self._n_memory_kills = os_process.n_memory_kills()
        self._exit_code: int | None = None

    def call(self, job: bytes, timeout_s: float) -> JobAnswer | Died | Silent:
        started_s = time.monotonic()
        deadline_s = started_s + timeout_s
        try:
            messages.send_message(self._jobs, job, deadline_s=deadline_s)
            self._wait_for_answer(deadline_s)
            return JobAnswer(payload=bytes(messages.receive_message(self._jobs, deadline_s=deadline_s)))
        except TimeoutError:
            waited_s = min(timeout_s, time.monotonic() - started_s)
            is_stopped = os_process.is_stopped(self.pid)
            if not is_stopped:
                self._have_stacks_written()
            return Silent(waited_s=waited_s, is_stopped=is_stopped)
        except (messages.ChannelClosedError, OSError, ValueError):
            # `select` raises the last one if `close` has closed the socket in the meantime.
            self.exited.wait(EXIT_NEWS_S)
            return Died(
                what="process",
                exit_code=self._exit_code,
                is_out_of_memory=self._exit_code == -signal.SIGKILL
                and os_process.n_memory_kills() > self._n_memory_kills,
            )

    def kill(self, wait_s: float) -> bool:
        self._signal(signal.SIGKILL)
        return self.exited.wait(wait_s)

    def close(self) -> None:
        """Release the actor's resources for an ended process."""
        self._jobs.close()
        os.close(self._pidfd)

    def note_exit(self, exit_code: int) -> None:
        """Record the end of the process, and wake callers that wait for an answer."""
        self._exit_code = exit_code
        # A grandchild may hold the other end open, but no answer will come. A caller that kills the process
        # closes the socket once the process has ended, but that would not wake the waiting thread.
        with contextlib.suppress(OSError):
            self._jobs.shutdown(socket.SHUT_RDWR)
        self.exited.set()

    def _wait_for_answer(self, deadline_s: float) -> None:
        """Wait until an answer begins or the socket closes; a stopped process gets less time.

        Raises:
            TimeoutError: the process did not answer in time.
        """
        halted_s = 0.0
        while True:
            waited_from_s = time.monotonic()
            left_s = deadline_s - waited_from_s
            if left_s <= 0 or halted_s > STOPPED_S:
                raise TimeoutError
            if select.select([self._jobs], [], [], min(left_s, _CHECK_S))[0]:
                return
            is_stopped = os_process.is_stopped(self.pid)
            halted_s = halted_s + time.monotonic() - waited_from_s if is_stopped else 0.0

    def _have_stacks_written(self) -> None:
        n_bytes = _size(self._log_path)
        self._signal(signal.SIGUSR1)
        limit_s = time.monotonic() + _FIRST_STACK_S
        while _size(self._log_path) == n_bytes and time.monotonic() < limit_s:
            if self.exited.wait(0.02):
                return
        self.exited.wait(_STACKS_S)

    def _signal(self, number: signal.Signals) -> None:
        if self.exited.is_set():
            return
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0
