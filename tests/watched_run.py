"""A `stratbench` command in a session of its own, watched from outside."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from processes import of_process, parent, process_ids, session, status
from waiting import eventually

from harness.worker.process.os_process import RUN_FOLDER_VARIABLE

FORK_SERVER = "harness.worker.process.fork_server"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class WatchedRun:
    """A running command.

    Attributes:
        temporary: its temporary directory, which is its alone.
    """

    def __init__(self, process: "subprocess.Popen[str]", temporary: Path) -> None:
        self.process = process
        self.temporary = temporary

    def folder(self) -> Path | None:
        """Its private folder, once there is one with its name on it."""
        return next((owner.parent for owner in self.temporary.glob("stratbench-*/owner.json")), None)

    def processes(self) -> tuple[int, ...]:
        """Processes in a run's name, or in its session: a process may overwrite its variables."""
        return tuple(
            pid
            for pid in process_ids()
            if f"{RUN_FOLDER_VARIABLE}={self.temporary}/".encode() in of_process(pid, "environ")
            or (pid != self.process.pid and session(pid) == self.process.pid)
        )

    def workers(self) -> dict[int, float]:
        """Worker processes of the cases that are open now, with the processor time that each has used."""
        fork_servers = {pid for pid in self.processes() if FORK_SERVER.encode() in of_process(pid, "cmdline")}
        # Between a fork server and each of its workers there is a subreaper.
        workers = (
            pid for pid in fork_servers if parent(pid) in fork_servers and parent(parent(pid)) in fork_servers
        )
        return {pid: _cpu_s(pid) for pid in workers}

    def finish(self, timeout_s: float = 600.0) -> tuple[int, str, str]:
        """Wait for its end; exit status, output, errors."""
        out, err = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, out, err

    def leftovers(self) -> list[str]:
        """Remains of a run that has ended: processes with their states and commands, and files."""
        return [*map(_described, self.processes()), *map(str, self.temporary.iterdir())]


@contextmanager
def watched(
    arguments: Sequence[str], cwd: Path, *, by: Sequence[str] = (), **environment: str
) -> Iterator[WatchedRun]:
    """Start a command; it is dead when the context ends.

    Args:
        by: a command that becomes it.
    """
    with tempfile.TemporaryDirectory(prefix="sb", dir="/tmp") as temporary:  # sockets need a short name
        process = subprocess.Popen(
            [*by, sys.executable, "-m", "harness.cli", *arguments],
            cwd=cwd,
            env={**os.environ, "TMPDIR": temporary, "HOME": "/nonexistent", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        run = WatchedRun(process, Path(temporary))
        try:
            yield run
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
            with suppress(AssertionError):
                eventually(lambda: not run.leftovers(), 60.0, "what runs or lies there in its name goes")
            assert run.leftovers() == []


def records(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of a run's results, none of which may hold a number that JSON has not."""
    return _parsed((run_dir / "results.jsonl").read_text())


def records_so_far(run_dir: Path) -> list[dict[str, Any]]:
    """Those of a run that goes on, and may be writing the next."""
    results = run_dir / "results.jsonl"
    return _parsed(results.read_text().rpartition("\n")[0]) if results.exists() else []


def _parsed(lines: str) -> list[dict[str, Any]]:
    return [json.loads(line, parse_constant=_no_constant) for line in lines.splitlines()]


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} in a record")


def _described(pid: int) -> str:
    return f"{pid} {' '.join(status(pid)[:1])} {of_process(pid, 'cmdline')!r}"


def _cpu_s(pid: int) -> float:
    fields = status(pid)
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S if fields else 0.0
