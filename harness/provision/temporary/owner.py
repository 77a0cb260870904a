"""Owner of what a run has made: the driver's process, told apart from all others before and after it."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.worker.process.os_process import boot_id


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """A process.

    Attributes:
        started: clock ticks from the machine's start to the process's; with its id it is unique until
            the next boot.
        pid_namespace: in which the id counts.
        session: which it and what it starts belong to, None where an earlier version has not said; no number
            is given to another session while one process of it is left.
    """

    pid: int
    started: int | None
    boot: str
    pid_namespace: str
    session: int | None = None

    @staticmethod
    def this_process() -> "Owner":
        """The process that asks."""
        pid = os.getpid()
        return Owner(
            pid=pid,
            started=start_time(pid),
            boot=boot_id(),
            pid_namespace=_pid_namespace(),
            session=os.getsid(0),
        )

    @staticmethod
    def of_text(text: str) -> "Owner":
        """Read what `to_text` wrote.

        Raises:
            ValueError: it is something else.
        """
        try:
            return Owner(**json.loads(text))
        except TypeError as error:
            raise ValueError(f"an owner must be an object of its five fields, got {text[:80]!r}") from error

    def to_text(self) -> str:
        """Write it as JSON, for a file or a label."""
        return json.dumps(asdict(self))

    def is_dead(self) -> bool:
        """Whether the process has ended; of one that only another container could know, never."""
        if self.boot != boot_id():
            return True
        return self.pid_namespace == _pid_namespace() and start_time(self.pid) != self.started


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def parent(pid: int) -> int | None:
    """Id of a process's parent; None if there is no such process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink())
