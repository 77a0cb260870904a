"""Processes on this machine for jobs without a provider: one for captures and plans, several for checks."""

import contextlib
import os
import select
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

from harness.processes import module_command
from harness.provision.failures import Awaited, failure_of
from harness.provision.protocols import LOOPBACK
from harness.provision.worker_environment import process_variables, temporary_folder
from harness.records.contained_files import open_to_write
from harness.worker.process import messages
from harness.worker.process.job import Args, Job, Result, job_name
from harness.worker.process.messages import Died, JobError, Silent, pack_job, unpack_answer
from harness.worker.process.tensorflow_gpus import library_path

_EXIT_S = 5.0


class ChildProcess:
    """Runs jobs one after the other in a separate process."""

    def __init__(self, process: "subprocess.Popen[bytes]", jobs: socket.socket, log: Path) -> None:
        self._process, self._jobs, self._log = process, jobs, log

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """Kill the process and everything that it started; a pending call fails."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_EXIT_S)
        self._process.kill()  # a stopped subreaper, and its process with it

    def call(self, job: Job[*Args, Result], args: tuple[*Args], *, timeout_s: float, stage: str) -> Result:
        """Run `job(state, *args)` and return what it returns.

        Raises:
            CaseError: the job failed, the process died, or it gave no answer in time.
        """
        started_s = time.monotonic()

        def awaited() -> Awaited:
            return Awaited(
                worker=0,
                what=job_name(job),
                waited_s=time.monotonic() - started_s,
                log=self._log,
                stage=stage,
                is_log_kept=False,
            )

        try:
            deadline_s = started_s + timeout_s
            messages.send_message(self._jobs, pack_job(job, args), deadline_s=deadline_s)
            self._wait_for_answer(deadline_s)
            answer = unpack_answer(bytes(messages.receive_message(self._jobs, deadline_s=deadline_s)))
        except messages.ChannelClosedError:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_EXIT_S)
            self.kill()  # a process without its channel cannot answer
            raise failure_of(Died(what="process", exit_code=self._process.wait()), awaited()) from None
        except TimeoutError:
            raise failure_of(Silent(waited_s=timeout_s), awaited()) from None
        if isinstance(answer, JobError):
            raise failure_of(answer, awaited())
        return cast("Result", answer)

    def _wait_for_answer(self, deadline_s: float) -> None:
        """Wait for the first answer; watch for death separately, because a grandchild may hold the channel.

        Raises:
            ChannelClosedError: the process has ended. TimeoutError: it neither answers nor ends.
        """
        if self._process.poll() is not None:
            raise messages.ChannelClosedError
        try:
            pidfd = os.pidfd_open(self._process.pid)
        except ProcessLookupError:  # already reaped by the process that killed it
            raise messages.ChannelClosedError from None
        try:
            ready = _readable([self._jobs.fileno(), pidfd], max(0.0, deadline_s - time.monotonic()))
        finally:
            os.close(pidfd)
        if not ready:
            raise TimeoutError
        if not _readable([self._jobs.fileno()], 0.0):
            raise messages.ChannelClosedError


def _readable(descriptors: Sequence[int], within_s: float) -> bool:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000 * within_s))


@contextmanager
def child_process(
    folder: Path, log: Path | None = None, *, gpus: Sequence[str] = ()
) -> Iterator[ChildProcess]:
    """Start a process that is dead when the context ends.

    Args:
        folder: folder of this command for its log and temporary files; see `reaper.run_folder`.
        log: file for its output; `child.log` in the folder by default.
        gpus: UUIDs of the GPUs that it sees.
    """
    log = log or folder / "child.log"
    own = process_variables(folder, "gpu" if gpus else "cpu", temporary_folder(folder), gpus)
    environment = {**os.environ, **own}
    with ExitStack() as stack:
        ours, theirs = socket.socketpair()
        stack.enter_context(ours)
        with theirs, os.fdopen(open_to_write(log, is_appended=True), "ab") as output:
            process = subprocess.Popen(
                module_command("harness.worker.process.job_process", str(theirs.fileno()), str(os.getpid())),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(),),
                env=environment | library_path(environment),
            )
        stack.callback(process.wait)
        child = ChildProcess(process, ours, log)
        stack.callback(child.kill)
        yield child


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalWorkers:
    """Starts processes on this host without Ray.

    Attributes:
        folder: temporary folder of this command.
        gpus: UUIDs of each worker's GPUs; empty on CPUs.
    """

    folder: Path
    gpus: Sequence[Sequence[str]] = ()

    @contextmanager
    def open_session(self, workers: Sequence[int], log_paths: Sequence[Path]) -> Iterator["ChildProcessSet"]:
        assert len(log_paths) == len(workers)
        with ExitStack() as stack:
            gpus = self.gpus or [()] * len(log_paths)
            processes = [
                stack.enter_context(child_process(self.folder, log, gpus=own))
                for log, own in zip(log_paths, gpus, strict=True)
            ]
            yield ChildProcessSet(processes)


class ChildProcessSet:
    """Processes that work together; see `protocols.ProcessSet`."""

    def __init__(self, processes: Sequence[ChildProcess]) -> None:
        self._processes = tuple(processes)

    @property
    def pids(self) -> Sequence[int]:
        return [process.pid for process in self._processes]

    @property
    def hosts(self) -> Sequence[str]:
        return [LOOPBACK] * len(self._processes)

    def call(
        self,
        job: Job[*Args, Result],
        per_worker_args: Sequence[tuple[*Args]],
        *,
        timeout_s: float,
        stage: str = "run",
    ) -> list[Result]:
        with ThreadPoolExecutor(len(self._processes)) as pool:
            calls = [
                pool.submit(partial(process.call, job, args, timeout_s=timeout_s, stage=stage))
                for process, args in zip(self._processes, per_worker_args, strict=True)
            ]
            try:
                done, _ = wait(calls, return_when=FIRST_EXCEPTION)
            except BaseException:
                # Interrupted: the pool would wait for answers before it raises.
                self._kill()
                raise
            failed = next((call for call in done if call.exception() is not None), None)
            if failed is not None:
                # The peers of a failed process may wait for it forever.
                self._kill()
        return [call.result() for call in ([failed] if failed is not None else calls)]

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()

    def call_one(
        self,
        worker: int,
        job: Job[*Args, Result],
        args: tuple[*Args],
        *,
        timeout_s: float,
        stage: str = "run",
    ) -> Result:
        return self._processes[worker].call(job, args, timeout_s=timeout_s, stage=stage)
