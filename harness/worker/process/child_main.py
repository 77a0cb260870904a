"""A process that serves jobs to its parent: `python -m harness.worker.process.child_main FD PARENT_PID`."""

import gc
import signal
import socket
import sys
from collections.abc import Sequence

from harness.worker.process import job_process, keeper


def main(argv: Sequence[str]) -> None:
    """Serve jobs on an inherited socket until its other end is closed."""
    keeper.go_on_kept(int(argv[1]))
    # A terminal sends Ctrl-C to everybody; only the driver should hear it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Graphs are millions of objects that live as long as the process; going through them again and again
    # takes a sixth of a capture. Forked processes keep Python's own limits.
    gc.set_threshold(100_000, 50, 50)
    jobs = socket.socket(fileno=int(argv[0]))
    jobs.set_inheritable(False)
    job_process.import_from_current_folder()
    job_process.serve(jobs)


if __name__ == "__main__":
    main(sys.argv[1:])
