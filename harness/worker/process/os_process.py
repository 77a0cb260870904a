"""Linux functions for processes: death with a parent, orphans, signals, memory."""

import ctypes
import os
import signal
from collections.abc import Set
from contextlib import suppress
from pathlib import Path

RUN_FOLDER_VARIABLE = "STRATBENCH_RUN_FOLDER"
"""Environment variable of every process of a run, with the run's folder."""
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
# Paths in versions 2 and 1 of control groups, as seen in a container.
_MEMORY_EVENTS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to kill this process when the *thread* that started it ends.

    Args:
        parent_pid: expected parent.
    Raises:
        OSError: the kernel refused.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        # The parent ended before the request was in effect; the signal would never be sent.
        os._exit(1)


def adopt_orphans() -> None:
    """Make this process the parent of descendants when their own parents end.

    Raises:
        OSError: the kernel refused.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_name(name: str) -> None:
    """Set this thread's name in the kernel, up to 15 characters."""
    _prctl(_PR_SET_NAME, ctypes.create_string_buffer(name.encode()))


def _prctl(option: int, argument: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, argument, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def children(pid: int) -> set[int]:
    """Ids of a process's children, including ended ones that are not reaped yet."""
    return {child for child, parent in _parents().items() if parent == pid}


def descendants(pids: Set[int]) -> set[int]:
    """Ids of the children of some processes, their children, and so on."""
    parents = _parents()
    tree = set(pids)
    while more := {child for child, parent in parents.items() if parent in tree} - tree:
        tree |= more
    return tree - pids


def _parents() -> dict[int, int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            # The process can end in the meantime.
            with suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return parents


def is_of_this_run(pid: int) -> bool:
    """True if a process belongs to the same run as this one."""
    folder = os.environ.get(RUN_FOLDER_VARIABLE)
    if pid == os.getpid() or folder is None:
        return pid == os.getpid()
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False  # another user's, or ended
    return os.fsencode(f"{RUN_FOLDER_VARIABLE}={folder}") in variables


def n_threads() -> int:
    """Number of threads of this process, including those of native libraries."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208


def is_stopped(pid: int) -> bool:
    """True if a signal such as SIGSTOP has stopped a process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in {"T", "t"}


def n_memory_kills() -> int:
    """Number of processes that the kernel killed for this control group's memory limit; 0 if unknown."""
    for path in _MEMORY_EVENTS:
        try:
            lines = Path(path).read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0


def available_memory_bytes() -> int | None:
    """Memory that is available without swapping; None if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def close_other_descriptors(keep: set[int]) -> None:
    """Close every file descriptor above standard error that is not in `keep`."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        descriptor = int(name)
        if descriptor > 2 and descriptor not in keep:
            # The listing's own descriptor is closed by now.
            os.closerange(descriptor, descriptor + 1)


def boot_id() -> str:
    """Id of this machine's boot, equal in all its containers."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
