"""Fork server: a process that has imported TensorFlow and Keras, and forks new processes in that state.

Its only thread waits on the control socket and on the subreapers of its processes. It has no eager context,
server or session, so that its forks are clean. Run:
`python -m harness.worker.process.fork_server CONTROL_FD PARENT_PID IMPORT…`.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from harness.worker.process import job_process, os_process

_MESSAGE_LIMIT = 65536


def main(argv: Sequence[str]) -> None:
    """Import modules, report readiness, and fork on request until the actor is gone."""
    os_process.die_with_parent(int(argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=int(argv[0]))
    control.set_inheritable(False)
    started_s = time.monotonic()
    for module in argv[2:]:
        importlib.import_module(module)
    job_process.import_from_current_folder()
    # Children share these pages; garbage collection in a child would copy them by touching every object.
    gc.collect()
    gc.freeze()
    gc.disable()
    _send(
        control,
        {"event": "ready", "import_s": time.monotonic() - started_s, "n_threads": os_process.n_threads()},
    )
    _ForkServer(control).serve()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Forked:
    subreaper_pid: int
    pid: int


class _ForkServer:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._forked: dict[int, _Forked] = {}  # through the subreaper's pidfd
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    def serve(self) -> None:
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor != self._control.fileno():
                    self._report_exit(descriptor)
                elif not self._answer_request():
                    return

    def _answer_request(self) -> bool:
        message, descriptors, _, _ = socket.recv_fds(self._control, _MESSAGE_LIMIT, 1)
        if not message:
            return False
        request = json.loads(message)
        jobs = socket.socket(fileno=descriptors[0])
        parent_pid = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        announced, announcing = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        subreaper_pid = os.fork()
        if subreaper_pid == 0:
            job_process.start_in_child(
                jobs,
                request["log_path"],
                parent_pid,
                announce=partial(_announce, announcing),
            )
        announcing.close()
        jobs.close()
        with announced:
            announcement, pidfds, _, _ = socket.recv_fds(announced, _MESSAGE_LIMIT, 1)
        subreaper_pidfd = os.pidfd_open(subreaper_pid)
        # A subreaper that has ended sends nothing; use its own process id.
        pid = int(announcement or subreaper_pid)
        self._forked[subreaper_pidfd] = _Forked(subreaper_pid=subreaper_pid, pid=pid)
        self._poll.register(subreaper_pidfd, select.POLLIN)
        forked = {"event": "forked", "token": request["token"], "pid": pid}
        _send(self._control, forked, pidfds or [subreaper_pidfd])
        for pidfd in pidfds:
            os.close(pidfd)
        return True

    def _report_exit(self, pidfd: int) -> None:
        process = self._forked.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(process.subreaper_pid, 0)
        exit_code = os.waitstatus_to_exitcode(status)
        _send(self._control, {"event": "exited", "pid": process.pid, "exit_code": exit_code})


def _announce(fork_server: socket.socket, pid: int) -> None:
    """Send the fork server a child's process id and pidfd, before the child can be reaped."""
    pidfd = os.pidfd_open(pid)
    socket.send_fds(fork_server, [str(pid).encode()], [pidfd])
    os.close(pidfd)


def _send(control: socket.socket, message: dict[str, object], descriptors: Sequence[int] = ()) -> None:
    try:
        socket.send_fds(control, [json.dumps(message).encode()], descriptors)
    except (BrokenPipeError, ConnectionResetError):
        # The actor is gone: there is nobody to serve, and the children die with this process.
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
