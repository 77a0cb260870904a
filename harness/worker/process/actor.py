"""The actor of one worker: keeps its zygote and has it fork fresh processes.

It passes jobs and answers between these and the driver without looking inside, and imports neither TensorFlow
nor Ray; providers make a Ray actor of it. Ray calls its
methods from several threads, so that a process can be killed while a job of it is awaited.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.worker.process import channel, os_process
from harness.worker.process.messages import Died, JobAnswer, Reply, Silent
from harness.worker.process.reachability import Door, OpenDoor, unanswered

_MESSAGE_LIMIT = 65536
_EXIT_NEWS_S = 2.0  # from a closed channel to the news of the exit code
_FORK_S = 30.0
_CHECK_S = 0.5
STOPPED_S = 10.0
"""For so long a process may be halted by a signal before it is given up."""
_NO_PIDFD = -1  # the process was gone before one could be opened
_STACKS_S = 0.3  # for a silent process to write all of its stacks into its log, once it has begun
_FIRST_STACK_S = 3.0  # to begin, which a busy machine delays


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerFacts:
    """What a worker is and what its start cost.

    Attributes:
        cores: those it is pinned to, None when it is not.
        door: port of its `OpenDoor`; None where others need not look whether they reach it.
        n_zygote_threads: threads of the zygote when it began to fork; more than one is a hazard.
    """

    pid: int
    zygote_pid: int
    import_s: float
    n_zygote_threads: int
    cores: tuple[int, ...] | None
    door: int | None = None


@dataclass(slots=True)
class _Child:
    pid: int
    pidfd: int
    jobs: socket.socket
    kills: int
    log_path: str
    exited: threading.Event = field(default_factory=threading.Event)
    exit_code: int | None = None


@dataclass(slots=True)
class _Fork:
    jobs: socket.socket
    log_path: str
    done: threading.Event = field(default_factory=threading.Event)
    child: _Child | None = None


class Worker:
    """One worker's actor.

    Args:
        imports: modules the zygote imports before it forks.
        cores: cores to pin this worker and all its processes to, None for none.
        log_path: where the zygote's output goes.
        environment: variables of the zygote and its children, on top of this process's own without Ray's.
        folder: current one of the zygote and its children, to which a user's paths are relative; None for
            this process's own.
        preload_s: how long the imports may take.
        has_door: whether others shall be able to see that they reach this worker.
    """

    def __init__(
        self,
        *,
        imports: Sequence[str],
        cores: tuple[int, ...] | None,
        log_path: str,
        environment: Mapping[str, str],
        folder: str | None = None,
        preload_s: float = 120.0,
        has_door: bool = False,
    ) -> None:
        self._imports = tuple(imports)
        self._cores = cores
        self._preload_s = preload_s
        self._log_path = log_path
        self._folder = folder
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | dict(
            environment
        )
        self._door = OpenDoor() if has_door else None
        self._lock = threading.Lock()
        self._children: dict[int, _Child] = {}
        self._forks: dict[int, _Fork] = {}
        self._ready = threading.Event()
        self._ready_message: dict[str, Any] = {}
        self._zygote_pid: int | None = None
        self._zygote_exit: int | None = None
        self._zygote_gone = threading.Event()
        if cores is not None:
            os.sched_setaffinity(0, cores)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        started = threading.Event()
        threading.Thread(target=self._keep_zygote, args=(theirs, started), daemon=True).start()
        started.wait()
        threading.Thread(target=self._listen, daemon=True).start()

    def facts(self) -> WorkerFacts | Died | Silent:
        """Wait for the zygote and describe the worker."""
        deadline_s = time.monotonic() + self._preload_s
        while not self._ready.wait(0.05):
            if self._zygote_gone.is_set():
                return self._zygote_died()
            if time.monotonic() > deadline_s:
                return Silent(waited_s=self._preload_s)
        if self._zygote_gone.is_set() or self._zygote_pid is None:
            return self._zygote_died()
        return WorkerFacts(
            pid=os.getpid(),
            zygote_pid=self._zygote_pid,
            import_s=self._ready_message["import_s"],
            n_zygote_threads=int(self._ready_message["n_threads"]),
            cores=self._cores,
            door=None if self._door is None else self._door.port,
        )

    def fork(self, log_path: str) -> int | Died | Silent:
        """Have the zygote fork a fresh process whose output goes to `log_path`; return its pid."""
        facts = self.facts()
        if not isinstance(facts, WorkerFacts):
            return facts
        ours, theirs = socket.socketpair()
        fork = _Fork(ours, log_path)
        with self._lock:
            token = ours.fileno()
            self._forks[token] = fork
        try:
            socket.send_fds(
                self._control,
                [json.dumps({"token": token, "log_path": log_path}).encode()],
                [theirs.fileno()],
            )
        except OSError:
            return self._zygote_died()
        finally:
            theirs.close()
        if not fork.done.wait(_FORK_S):
            return Silent(waited_s=_FORK_S)
        return self._zygote_died() if fork.child is None else fork.child.pid

    def call(self, pid: int, job: bytes, timeout_s: float) -> Reply:
        """Run one job in a process and wait for its answer, its death or the end of the time."""
        child = self._children.get(pid)
        if child is None:
            return self._zygote_died() if self._zygote_gone.is_set() else Died(what="process", exit_code=None)
        started_s = time.monotonic()
        deadline_s = started_s + timeout_s
        try:
            channel.send_message(child.jobs, job, deadline_s=deadline_s)
            _wait_for_answer(child, deadline_s)
            return JobAnswer(payload=bytes(channel.receive_message(child.jobs, deadline_s=deadline_s)))
        except TimeoutError:
            waited_s = min(timeout_s, time.monotonic() - started_s)
            is_stopped = os_process.is_stopped(pid)
            if not is_stopped:
                self._have_stacks_written(child)
            return Silent(waited_s=waited_s, is_stopped=is_stopped)
        except (channel.ChannelClosedError, OSError, ValueError):
            # The last is what `select` says of a socket that `kill` has closed meanwhile.
            child.exited.wait(_EXIT_NEWS_S)
            if self._zygote_gone.is_set():
                return self._zygote_died()
            return Died(
                what="process",
                exit_code=child.exit_code,
                is_out_of_memory=child.exit_code == -signal.SIGKILL
                and os_process.n_memory_kills() > child.kills,
            )

    def unanswered(self, doors: Sequence[Door], wait_s: float) -> list[int]:
        """Knock at the doors of other workers; return the indices of those where nobody answers."""
        return unanswered(doors, wait_s)

    def kill(self, pid: int, wait_s: float = 5.0) -> bool:
        """Kill a process; True when it is known to be gone, and with it its ports and memory."""
        child = self._children.get(pid)
        if child is None:
            return True
        self._signal(child, signal.SIGKILL)
        gone = child.exited.wait(wait_s)
        if gone:
            with self._lock:
                self._children.pop(pid, None)
            child.jobs.close()
            if child.pidfd != _NO_PIDFD:
                os.close(child.pidfd)
        return gone

    def _keep_zygote(self, control: socket.socket, started: threading.Event) -> None:
        # The kernel kills the zygote when the thread that started it ends, so this thread stays to its end.
        descriptor = control.fileno()
        command = [
            sys.executable,
            "-m",
            "harness.worker.process.zygote",
            str(descriptor),
            str(os.getpid()),
            *self._imports,
        ]
        try:
            with open(self._log_path, "ab") as log:  # noqa: PTH123
                zygote = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(descriptor,),
                    env=self._environment,
                    cwd=self._folder,
                    start_new_session=True,  # Ctrl-C in a terminal reaches its whole process group
                )
            self._zygote_pid = zygote.pid
        finally:
            control.close()
            started.set()
        self._zygote_exit = zygote.wait()
        self._zygote_gone.set()

    def _listen(self) -> None:
        while message := self._receive_event():
            if message["event"] == "ready":
                self._ready_message = message
                self._ready.set()
            elif message["event"] == "forked":
                self._note_fork(message)
            else:
                self._note_exit(int(message["pid"]), int(message["exit_code"]))
        self._zygote_gone.wait(_EXIT_NEWS_S)
        self._zygote_gone.set()
        with self._lock:
            forks, children = list(self._forks.values()), list(self._children.values())
            self._forks.clear()
        for fork in forks:
            fork.done.set()
        for child in children:
            # The kernel kills the children with their zygote.
            child.exited.set()

    def _receive_event(self) -> dict[str, Any]:
        try:
            message = self._control.recv(_MESSAGE_LIMIT)
        except OSError:
            message = b""
        return json.loads(message) if message else {}

    def _note_fork(self, message: dict[str, Any]) -> None:
        with self._lock:
            fork = self._forks.pop(int(message["token"]))
            pid = int(message["pid"])
            # The zygote reaps it only after this message, but perhaps at once: the exit comes next then.
            try:
                pidfd = os.pidfd_open(pid)
            except ProcessLookupError:
                pidfd = _NO_PIDFD
            fork.child = _Child(pid, pidfd, fork.jobs, os_process.n_memory_kills(), fork.log_path)
            self._children[pid] = fork.child
        fork.done.set()

    def _note_exit(self, pid: int, exit_code: int) -> None:
        child = self._children.get(pid)
        if child is None:
            return
        child.exit_code = exit_code
        # A grandchild may hold the other end open; the answer to wait for will not come all the same. Whoever
        # kills closes the socket as soon as the process has ended, which would wake nobody.
        with contextlib.suppress(OSError):
            child.jobs.shutdown(socket.SHUT_RDWR)
        child.exited.set()

    def _have_stacks_written(self, child: _Child) -> None:
        n_bytes = _size(child.log_path)
        self._signal(child, signal.SIGUSR1)
        limit_s = time.monotonic() + _FIRST_STACK_S
        while _size(child.log_path) == n_bytes and time.monotonic() < limit_s:
            if child.exited.wait(0.02):
                return
        child.exited.wait(_STACKS_S)

    def _signal(self, child: _Child, number: signal.Signals) -> None:
        if child.exited.is_set() or child.pidfd == _NO_PIDFD:
            return
        try:
            signal.pidfd_send_signal(child.pidfd, number)
        except ProcessLookupError:
            return

    def _zygote_died(self) -> Died:
        self._zygote_gone.wait(_EXIT_NEWS_S)
        return Died(what="zygote", exit_code=self._zygote_exit)


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def _wait_for_answer(child: _Child, deadline_s: float) -> None:
    """Wait until a process begins to answer or its socket closes; one that is halted gets little time.

    Raises:
        TimeoutError: it does not answer.
    """
    halted_s = 0.0
    while True:
        waited_from_s = time.monotonic()
        left_s = deadline_s - waited_from_s
        if left_s <= 0 or halted_s > STOPPED_S:
            raise TimeoutError
        if select.select([child.jobs], [], [], min(left_s, _CHECK_S))[0]:
            return
        halted_s = halted_s + time.monotonic() - waited_from_s if os_process.is_stopped(child.pid) else 0.0
