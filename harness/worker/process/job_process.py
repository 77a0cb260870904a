"""Worker process: runs jobs in order until its channel closes or it is killed.

`python -m harness.worker.process.job_process FD PARENT_PID` runs jobs for its parent.
"""

import faulthandler
import gc
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from harness.records.contained_files import open_to_write
from harness.worker.process import messages, os_process, subreaper
from harness.worker.process.job import JobState
from harness.worker.process.messages import JobError, pack_answer, unpack_job


def import_from_current_folder() -> None:
    """Let users' files import from the current folder, after our packages and installed ones."""
    # Packages of an editable install come after the whole path: import them before it is changed.
    import strategies  # noqa: F401
    import workloads  # noqa: F401

    sys.path.append(str(Path.cwd()))


def serve(jobs: socket.socket) -> None:
    """Run jobs until the other end closes."""
    state = JobState()
    with state.stack:
        while True:
            try:
                message = messages.receive_message(jobs)
            except messages.ChannelClosedError:
                return
            answer = pack_answer(_run(state, message))
            del message
            _flush()
            try:
                messages.send_message(jobs, answer)
            except messages.ChannelClosedError:
                return


def _run(state: JobState, message: bytearray) -> object:
    try:
        job, args = unpack_job(message)
        return job(state, *args)
    except BaseException as error:  # noqa: BLE001  a job runs the code of workloads; Ctrl-C does not come here
        described = JobError.of(error)
        # A workload may have closed standard error, which is this process's log, or its disk may be full.
        with suppress(ValueError, OSError):
            print(described.traceback, file=sys.stderr)  # noqa: T201 - into the log
        return described


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        # See above; None if there is none.
        with suppress(ValueError, OSError, AttributeError):
            stream.flush()


def start_in_child(
    jobs: socket.socket, log_path: str, parent_pid: int, announce: Callable[[int], None]
) -> None:
    """Turn a forked process into the subreaper of a worker process, and its child into that; never return.

    Args:
        jobs: channel, the only descriptor that stays open.
        log_path: file for standard output and error, appended.
        parent_pid: id of the process that forked it; both end with it.
        announce: called with the id of the worker process.
    """
    status = 1
    try:
        subreaper.continue_below_subreaper(parent_pid, announce=announce)
        os.setpgid(0, 0)  # a workload that signals its process group reaches no other process
        # A terminal sends Ctrl-C to all processes, but only the driver handles it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        log = open_to_write(Path(log_path), is_appended=True)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os_process.close_other_descriptors({jobs.fileno()})
        # For native crashes, and for the stacks of a process that is about to be killed for its silence.
        faulthandler.enable(file=2, all_threads=True)
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
        gc.enable()
        serve(jobs)
        status = 0
    except BaseException:  # noqa: BLE001  whatever it is, the fork server's stack must not unwind in here
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        # Not sys.exit: the frames below belong to the fork server.
        os._exit(status)


def main(argv: Sequence[str]) -> None:
    """Run jobs from an inherited socket until its other end is closed."""
    subreaper.continue_below_subreaper(int(argv[1]))
    # A terminal sends Ctrl-C to all processes, but only the driver handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Graphs are millions of objects that live as long as the process; scanning them repeatedly takes a
    # sixth of a capture. Forked processes keep Python's default thresholds.
    gc.set_threshold(100_000, 50, 50)
    jobs = socket.socket(fileno=int(argv[0]))
    jobs.set_inheritable(False)
    import_from_current_folder()
    serve(jobs)


if __name__ == "__main__":
    main(sys.argv[1:])
