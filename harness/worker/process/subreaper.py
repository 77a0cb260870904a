"""Subreaper of a worker process: its parent, which cleans up after the code of a workload.

Orphaned descendants of the process become children of the subreaper, in whatever session they are. It kills
them and unlinks their shared memory: inotify reports each new name in `/dev/shm`, and a file is removed if
one of these processes had it open as shared memory at that moment. Ordinary files, files without a known
owner, and files used by a living process stay.
"""

import ctypes
import os
import re
import resource
import select
import signal
import stat
import struct
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Never

from harness.worker.process import os_process

NAME = "subreaper"
"""Name of subreapers in the kernel's process list."""
_ORPHANS_S = 3.0  # for killed orphans to disappear
ENDED_WITHIN_S = _ORPHANS_S + 1.0
"""Seconds in which a subreaper cleans up and ends after its process has ended."""
# Python's and joblib's own processes that unlink the shared memory of an ended program.
_UNLINKS_MEMORY = b"resource_tracker"
_UNLINKING_S = 1.0
_CHECK_S = 0.005
_FAILED = 1 << 8  # exit status 1, in the kernel's encoding
_MEMORY = Path("/dev/shm")  # noqa: S108 - the kernel's place for shared memory, not one for files of ours
# Semaphores, and memory that is not opened by `shm_open` or closed at once: PyTorch's and NCCL's.
_KNOWN_MEMORY = re.compile(r"sem\..+|torch_\d+_\d+_\d+|nccl-\w{6}")
_IN_CREATE = 0x100
_EVENT = struct.Struct("iIII")
_BATCH_BYTES = 65536


def continue_below_subreaper(parent_pid: int, *, announce: Callable[[int], None] | None = None) -> None:
    """Continue in a child of this process; this process becomes its subreaper and does not return.

    The subreaper exits like the child, and ends the child if the parent is gone or on SIGTERM.

    Args:
        parent_pid: id of the process that started this one.
        announce: called in the subreaper with the child's id.
    """
    subreaper_pid = os.getpid()
    os_process.adopt_orphans()
    # before the child can create any
    memory = _MemoryWatch()
    # A request to end the child waits until the child exists.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    child_pid = os.fork()
    if child_pid == 0:
        for descriptor in memory.descriptors:
            os.close(descriptor)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        os_process.die_with_parent(subreaper_pid)
        return
    status = _FAILED
    try:
        os_process.set_name(NAME)
        if announce is not None:
            announce(child_pid)
        os_process.close_other_descriptors(set(memory.descriptors))
        status = _end_of_child(child_pid, parent_pid, memory)
    except BaseException:  # noqa: BLE001  the caller's stack must not unwind in here; the child ends with it
        traceback.print_exc()
    finally:
        _end_with(status)


def _end_of_child(child_pid: int, parent_pid: int, memory: "_MemoryWatch") -> int:
    """Wait for the child's end and clean up after it; return its wait status."""
    _watch(child_pid, parent_pid, memory, _signal_pipe())
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, status = os.waitpid(child_pid, 0)
    _end_orphans()
    memory.remove()
    return status


def _signal_pipe() -> int:
    """Read end of a new pipe that receives the number of each SIGTERM and SIGCHLD; ignores SIGINT."""
    read_end, write_end = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(write_end)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    return read_end


def _watch(child_pid: int, parent_pid: int, memory: "_MemoryWatch", signal_pipe: int) -> None:
    """Return once the child has ended; kill it on SIGTERM or when the parent ends."""
    child = os.pidfd_open(child_pid)
    poll = select.poll()
    for descriptor in (child, signal_pipe, *memory.descriptors):
        poll.register(descriptor, select.POLLIN)
    with suppress(ProcessLookupError):
        poll.register(os.pidfd_open(parent_pid), select.POLLIN)
    if os.getppid() != parent_pid:
        os.kill(child_pid, signal.SIGKILL)  # its id is not reused before it is reaped
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        memory.note(child_pid)
        if child in ready:
            return
        signals = os.read(signal_pipe, _BATCH_BYTES) if signal_pipe in ready else b""
        ended_parents = ready - {signal_pipe, *memory.descriptors}
        for parent in ended_parents:
            poll.unregister(parent)
        if ended_parents or signal.SIGTERM in signals:
            os.kill(child_pid, signal.SIGKILL)
        _reap_orphans(child_pid)


def _reap_orphans(child_pid: int) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid == child_pid:
                return
            os.waitpid(ended.si_pid, 0)


def _end_orphans() -> None:
    """Kill all children, including new orphans, until there are none."""
    started_s = time.monotonic()
    while (waited_s := time.monotonic() - started_s) < _ORPHANS_S:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for pid in os_process.children(os.getpid()):
            # The process that unlinks memory ends by itself, after all others.
            if waited_s > _UNLINKING_S or not _unlinks_memory(pid):
                with suppress(PermissionError):  # now another user's
                    os.kill(pid, signal.SIGKILL)
        time.sleep(_CHECK_S)


def _unlinks_memory(pid: int) -> bool:
    try:
        return _UNLINKS_MEMORY in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _end_with(status: int) -> Never:
    """End in the same way as a process with that wait status."""
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child has written its own core dump
        number = os.WTERMSIG(status)
        with suppress(OSError, ValueError):  # SIGKILL takes no handler
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


@dataclass(frozen=True, slots=True)
class _Inode:
    device: int
    number: int

    @staticmethod
    def of(status: os.stat_result) -> "_Inode":
        return _Inode(status.st_dev, status.st_ino)


class _MemoryWatch:
    """Watch for new shared memory; reports none if the kernel grants this user no more watches."""

    def __init__(self) -> None:
        self._segments: dict[Path, _Inode] = {}
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self.descriptors: tuple[int, ...] = () if descriptor < 0 else (descriptor,)
        """Descriptors that are readable when there are new names."""
        for watch in self.descriptors:
            libc.inotify_add_watch(watch, os.fsencode(_MEMORY), _IN_CREATE)

    def note(self, child_pid: int) -> None:
        """Record new shared memory that this process's child or another descendant holds."""
        for name in self._new_names():
            with suppress(OSError):  # unlinked at once, as semaphores are
                status = (_MEMORY / name).lstat()
                inode = _Inode.of(status)
                if stat.S_ISREG(status.st_mode) and _is_made_below(child_pid, name, inode):
                    self._segments[_MEMORY / name] = inode

    def remove(self) -> None:
        """Unlink recorded shared memory that no living process uses."""
        left = {path: inode for path, inode in self._segments.items() if _is_at(path, inode)}
        used = _used_by_anyone() if left else set()
        for path, inode in left.items():
            if inode not in used and _is_at(path, inode):
                with suppress(OSError):
                    path.unlink()

    def _new_names(self) -> list[str]:
        names: list[str] = []
        for descriptor in self.descriptors:
            with suppress(BlockingIOError):
                while content := os.read(descriptor, _BATCH_BYTES):
                    names += _names_of(content)
        return names


def _names_of(events: bytes) -> Iterator[str]:
    while events:
        *_, n_bytes = _EVENT.unpack_from(events)
        name = events[_EVENT.size : _EVENT.size + n_bytes].rstrip(b"\0")
        if name:  # there is none if events were lost
            yield os.fsdecode(name)
        events = events[_EVENT.size + n_bytes :]


def _is_at(path: Path, inode: _Inode) -> bool:
    try:
        return _Inode.of(path.lstat()) == inode
    except OSError:
        return False


def _is_made_below(child_pid: int, name: str, inode: _Inode) -> bool:
    # The child first: it may close its own memory at any time.
    return _has_as_memory(child_pid, name, inode) or any(
        _has_as_memory(pid, name, inode) for pid in os_process.descendants({os.getpid()}) - {child_pid}
    )


def _has_as_memory(pid: int, name: str, inode: _Inode) -> bool:
    """True if a process uses a file as shared memory, not only by writing or mapping it."""
    is_known = _KNOWN_MEMORY.fullmatch(name) is not None
    for descriptor, opened in _open_files(pid):
        if opened == inode and (is_known or _is_by_shm_open(pid, descriptor)):
            return True
    return is_known and inode in _mapped_files(pid)


def _is_by_shm_open(pid: int, descriptor: str) -> bool:
    """True if a descriptor has the flag that `shm_open` sets, but `open` does not set by itself."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text().splitlines():
            if line.startswith("flags:"):
                return bool(int(line.split()[1], 8) & os.O_NOFOLLOW)
    return False


def _used_by_anyone() -> set[_Inode]:
    used: set[_Inode] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            pid = int(entry.name)
            used.update(inode for _, inode in _open_files(pid))
            used |= _mapped_files(pid)
    return used


def _open_files(pid: int) -> Iterator[tuple[str, _Inode]]:
    with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as descriptors:
        for descriptor in descriptors:
            with suppress(OSError):
                yield descriptor.name, _Inode.of(descriptor.stat())


def _mapped_files(pid: int) -> set[_Inode]:
    try:
        lines = Path(f"/proc/{pid}/maps").read_bytes().splitlines()
    except OSError:
        return set()
    inodes: set[_Inode] = set()
    for line in lines:
        _, _, _, device, number, *_ = line.split(maxsplit=5)
        if number != b"0":
            major, minor = (int(part, 16) for part in device.split(b":"))
            inodes.add(_Inode(os.makedev(major, minor), int(number)))
    return inodes
