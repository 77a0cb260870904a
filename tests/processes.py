"""Facts from the kernel about processes, which may end at any time."""

from collections.abc import Iterator
from pathlib import Path

_ENDED = ("Z", "X")  # states in which nothing of a process runs


def process_ids() -> Iterator[int]:
    """Ids of the processes that are there now."""
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())


def of_process(pid: int, name: str) -> bytes:
    """A file of a process, such as `cmdline`; empty of one that has ended, or is somebody else's."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def link_of_process(pid: int, name: str) -> str:
    """Target of a link of a process, such as `ns/net`; empty if it has ended or is another user's."""
    try:
        return str(Path(f"/proc/{pid}/{name}").readlink())
    except OSError:
        return ""


def program(pid: int) -> str:
    """Name of the file that a process runs."""
    return Path(of_process(pid, "cmdline").split(b"\0")[0].decode(errors="replace")).name


def status(pid: int) -> list[str]:
    """Fields of `stat` from the process's state on; none of one that has ended."""
    return of_process(pid, "stat").decode().rpartition(")")[2].split()


def parent(pid: int) -> int:
    """Its parent; 0 of one that has none, or has ended."""
    fields = status(pid)
    return int(fields[1]) if fields else 0


def session(pid: int) -> int:
    """Its session; 0 of one that has ended, though its parent has not asked for its end yet."""
    fields = status(pid)
    return int(fields[3]) if fields and fields[0] not in _ENDED else 0


def descendants(root: int) -> set[int]:
    """Children of a process, theirs, and so on, as far as none between them has ended."""
    parents = {pid: parent(pid) for pid in process_ids()}
    results = {root}
    while more := {pid for pid, above in parents.items() if above in results} - results:
        results |= more
    return results - {root}
