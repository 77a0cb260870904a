"""A fresh worker process: serves jobs one after the other until its channel closes or somebody kills it."""

import faulthandler
import gc
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from harness.contained_files import open_to_write
from harness.worker.process import channel, keeper, os_process
from harness.worker.process.job import JobState
from harness.worker.process.messages import JobError, pack_answer, unpack_job


def import_from_current_folder() -> None:
    """Let users' files import what lies in the current folder, after all that is ours or installed."""
    # Packages of an editable install are looked for after the whole path: they must be there before.
    import strategies  # noqa: F401
    import workloads  # noqa: F401

    sys.path.append(str(Path.cwd()))


def serve(jobs: socket.socket) -> None:
    """Run jobs until the other end closes."""
    state = JobState()
    with state.stack:
        while True:
            try:
                message = channel.receive_message(jobs)
            except channel.ChannelClosedError:
                return
            answer = pack_answer(_run(state, message))
            del message
            _flush()
            try:
                channel.send_message(jobs, answer)
            except channel.ChannelClosedError:
                return


def _run(state: JobState, message: bytearray) -> object:
    try:
        job, args = unpack_job(message)
        return job(state, *args)
    except BaseException as error:  # noqa: BLE001  a job runs the code of workloads; Ctrl-C does not come here
        described = JobError.of(error)
        # A workload can have closed standard error, which is this process's log, and its disk can be full.
        with suppress(ValueError, OSError):
            print(described.traceback, file=sys.stderr)  # noqa: T201 - into the log
        return described


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        # As above; None stands for one that is not there.
        with suppress(ValueError, OSError, AttributeError):
            stream.flush()


def start_in_child(
    jobs: socket.socket, log_path: str, parent_pid: int, announce: Callable[[int], None]
) -> None:
    """Turn a just forked process into the keeper of a worker process, and its child into that; do not return.

    Args:
        jobs: its channel, the only descriptor it keeps.
        log_path: where its standard output and error go, appended.
        parent_pid: the process that forked it and that both die with.
        announce: called with the id of the worker process.
    """
    status = 1
    try:
        keeper.go_on_kept(parent_pid, announce=announce)
        os.setpgid(0, 0)  # a workload that signals its whole group reaches nobody else
        # A terminal sends Ctrl-C to everybody; only the driver should hear it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        log = open_to_write(Path(log_path), is_appended=True)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os_process.close_other_descriptors({jobs.fileno()})
        # Native crashes, and the stacks of a process that is about to be killed for its silence.
        faulthandler.enable(file=2, all_threads=True)
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
        gc.enable()
        serve(jobs)
        status = 0
    except BaseException:  # noqa: BLE001  whatever it is, the zygote's stack must not unwind in here
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        # Not sys.exit: the stack below belongs to the zygote.
        os._exit(status)
