"""What the kernel tells of processes, any of which may end meanwhile."""

from collections.abc import Iterator
from pathlib import Path


def process_ids() -> Iterator[int]:
    """Ids of the processes that are there now."""
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())


def of_process(pid: int, name: str) -> bytes:
    """A file of a process, such as `cmdline`; empty of one that has ended, or is somebody else's."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def program(pid: int) -> str:
    """Name of the file that a process runs."""
    return Path(of_process(pid, "cmdline").split(b"\0")[0].decode(errors="replace")).name
