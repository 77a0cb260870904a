"""Actor of one worker: runs the fork server that forks new processes for it.

It forwards jobs and answers unread, and imports neither TensorFlow nor Ray; providers turn it into a Ray
actor. Ray calls its methods from several threads, so that a process can be killed during a job.
"""

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.processes import module_command
from harness.records.contained_files import open_to_write
from harness.worker.process.forked_process import EXIT_NEWS_S, ForkedProcess
from harness.worker.process.messages import Died, Reply, Silent
from harness.worker.process.reachability import ProbeAddress, ProbeListener, unreachable
from harness.worker.process.tensorflow_gpus import library_path

_MESSAGE_LIMIT = 65536


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerFacts:
    """Identity of a worker, and the cost of its start.

    Attributes:
        cores: numbers of the cores that it is pinned to; None if it is not pinned.
        probe_port: port of its `ProbeListener`; None if others do not test their connection to it.
        n_fork_server_threads: threads of the fork server at its first fork; more than one is a hazard.
        ready_for_s: seconds since it could first fork.
    """

    pid: int
    fork_server_pid: int
    import_s: float
    n_fork_server_threads: int
    cores: tuple[int, ...] | None
    ready_for_s: float
    probe_port: int | None = None


@dataclass(slots=True)
class _Fork:
    """A requested fork; abandoned once no caller waits for it."""

    jobs: socket.socket
    log_path: str
    done: threading.Event = field(default_factory=threading.Event)
    process: ForkedProcess | None = None
    is_abandoned: bool = False


class Worker:
    """One worker's actor.

    Args:
        imports: modules that the fork server imports before it forks.
        cores: cores to pin this worker and all its processes to; None for no pinning.
        log_path: log of the fork server.
        environment: variables of the fork server and its children, besides this process's own without Ray's.
        folder: working directory, to which a user's paths are relative; None for this process's own.
        preload_s: time limit of the imports. fork_s: time limit of a fork.
        has_probe: True listens, so that others can test their connection to this worker.
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
        fork_s: float = 30.0,
        has_probe: bool = False,
    ) -> None:
        self._imports = tuple(imports)
        self._cores = cores
        self._preload_s = preload_s
        self._fork_s = fork_s
        self._log_path = log_path
        self._folder = folder
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | dict(
            environment
        )
        self._environment |= library_path(self._environment)
        self._probe = ProbeListener() if has_probe else None
        self._lock = threading.Lock()
        self._processes: dict[int, ForkedProcess] = {}
        self._forks: dict[int, _Fork] = {}
        self._abandoned: set[int] = set()
        self._ready = threading.Event()
        self._ready_message: dict[str, Any] = {}
        self._ready_s = 0.0
        self._fork_server_pid: int | None = None
        self._fork_server_exit: int | None = None
        self._fork_server_gone = threading.Event()
        if cores is not None:
            os.sched_setaffinity(0, cores)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        started = threading.Event()
        threading.Thread(target=self._run_fork_server, args=(theirs, started), daemon=True).start()
        started.wait()
        threading.Thread(target=self._listen, daemon=True).start()

    def facts(self) -> WorkerFacts | Died | Silent:
        deadline_s = time.monotonic() + self._preload_s
        while not self._ready.wait(0.05):
            if self._fork_server_gone.is_set():
                return self._fork_server_died()
            if time.monotonic() > deadline_s:
                return Silent(waited_s=self._preload_s)
        if self._fork_server_gone.is_set() or self._fork_server_pid is None:
            return self._fork_server_died()
        return WorkerFacts(
            pid=os.getpid(),
            fork_server_pid=self._fork_server_pid,
            import_s=self._ready_message["import_s"],
            n_fork_server_threads=int(self._ready_message["n_threads"]),
            cores=self._cores,
            ready_for_s=time.monotonic() - self._ready_s,
            probe_port=None if self._probe is None else self._probe.port,
        )

    def fork(self, log_path: str) -> int | Died | Silent:
        """Fork a new process with its output in `log_path`; return its process id."""
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
            return self._fork_server_died()
        finally:
            theirs.close()
        if not fork.done.wait(self._fork_s):
            with self._lock:
                fork.is_abandoned = fork.process is None
            if fork.is_abandoned:
                return Silent(waited_s=self._fork_s)
        return self._fork_server_died() if fork.process is None else fork.process.pid

    def call(self, pid: int, job: bytes, timeout_s: float) -> Reply:
        """Run one job in a process; return its answer, or a value for its death or silence."""
        process = self._processes.get(pid)
        reply = Died(what="process", exit_code=None) if process is None else process.call(job, timeout_s)
        return (
            self._fork_server_died() if isinstance(reply, Died) and self._fork_server_gone.is_set() else reply
        )

    def unreachable(self, probes: Sequence[ProbeAddress], wait_s: float) -> list[int]:
        """Indices of other workers' listeners that cannot be reached."""
        return unreachable(probes, wait_s)

    def kill(self, pid: int, wait_s: float = 5.0) -> bool:
        """Kill a process; True if it is gone, with its ports and memory."""
        process = self._processes.get(pid)
        if process is None:
            return True
        is_gone = process.kill(wait_s)
        if is_gone:
            with self._lock:
                self._processes.pop(pid, None)
            process.close()
        return is_gone

    def _run_fork_server(self, control: socket.socket, started: threading.Event) -> None:
        # The kernel kills the fork server when the thread that started it ends, so this thread waits for it.
        descriptor = control.fileno()
        command = module_command(
            "harness.worker.process.fork_server", str(descriptor), str(os.getpid()), *self._imports
        )
        try:
            with os.fdopen(open_to_write(Path(self._log_path), is_appended=True), "ab") as log:
                server = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(descriptor,),
                    env=self._environment,
                    cwd=self._folder,
                    start_new_session=True,  # Ctrl-C in a terminal reaches its whole process group
                )
            self._fork_server_pid = server.pid
        finally:
            control.close()
            started.set()
        self._fork_server_exit = server.wait()
        self._fork_server_gone.set()

    def _listen(self) -> None:
        while received := self._receive_event():
            message, pidfds = received
            if message["event"] == "ready":
                self._ready_message, self._ready_s = message, time.monotonic()
                self._ready.set()
            elif message["event"] == "forked":
                self._note_fork(message, pidfds[0])
            else:
                self._note_exit(int(message["pid"]), int(message["exit_code"]))
        self._fork_server_gone.wait(EXIT_NEWS_S)
        self._fork_server_gone.set()
        with self._lock:
            forks, processes = list(self._forks.values()), list(self._processes.values())
            self._forks.clear()
        for fork in forks:
            fork.done.set()
        for process in processes:
            # The kernel kills the children with their fork server.
            process.exited.set()

    def _receive_event(self) -> tuple[dict[str, Any], list[int]] | None:
        try:
            message, descriptors, _, _ = socket.recv_fds(
                self._control, _MESSAGE_LIMIT, 1, socket.MSG_CMSG_CLOEXEC
            )
        except OSError:
            return None
        return (json.loads(message), descriptors) if message else None

    def _note_fork(self, message: dict[str, Any], pidfd: int) -> None:
        with self._lock:
            fork = self._forks.pop(int(message["token"]))
            pid = int(message["pid"])
            fork.process = ForkedProcess(pid, pidfd, fork.jobs, fork.log_path)
            self._processes[pid] = fork.process
        fork.done.set()
        if fork.is_abandoned:
            # Only this code knows its id. This thread is notified of its end later, so it must not wait.
            self._abandoned.add(pid)
            fork.process.kill(0.0)

    def _note_exit(self, pid: int, exit_code: int) -> None:
        process = self._processes.get(pid)
        if process is not None:
            process.note_exit(exit_code)
        if pid in self._abandoned:
            self._abandoned.remove(pid)
            self.kill(pid)

    def _fork_server_died(self) -> Died:
        self._fork_server_gone.wait(EXIT_NEWS_S)
        return Died(what="fork server", exit_code=self._fork_server_exit)
