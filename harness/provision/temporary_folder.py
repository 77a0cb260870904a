"""Temporary folder of a run, its owner, and removal of dead runs' folders and processes.

Each folder has a cleanup process, `python -m harness.provision.temporary_folder FOLDER`. When its driver ends
in any way, it kills the run's remaining processes and removes the folder. These include Ray agents, which
overwrite the environment variables that mark other processes.
"""

import errno
import json
import os
import re
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.errors import MissingError
from harness.processes import module_command
from harness.provision.worktrees import forget_worktrees
from harness.worker.process import subreaper
from harness.worker.process.os_process import RUN_FOLDER_VARIABLE, boot_id, descendants


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """Process that owns a folder.

    Attributes:
        started: clock ticks from boot to the process's start; with the id, unique until the next boot.
        pid_namespace: PID namespace of the id.
        session: session of the process and its children; None if an earlier version wrote it. Its number is
            not reused while any of its processes is alive.
    """

    pid: int
    started: int | None
    boot: str
    pid_namespace: str
    session: int | None = None

    @staticmethod
    def this_process() -> "Owner":
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
        try:
            return Owner(**json.loads(text))
        except TypeError as error:
            raise ValueError(f"an owner must be an object of its five fields, got {text[:80]!r}") from error

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    def is_dead(self) -> bool:
        """True if the process has ended; False if it belongs to another PID namespace."""
        if self.boot != boot_id():
            return True
        return self.pid_namespace == _pid_namespace() and start_time(self.pid) != self.started


def start_time(pid: int) -> int | None:
    """Start of a process in clock ticks since boot; None if there is no such process."""
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


PREFIX = "stratbench-"
_NAME = re.compile(PREFIX + "[0-9a-f]{8,12}")  # users choose other prefixes
_INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OWNER = "owner.json"
_OWNERLESS_AGE_S = 60.0
_BEGINNING_S = 1.0
_BEGIN_BYTES = 16 * 2**20  # for logs of Ray's servers, and a small model
_GO_ON_BYTES = 2**18
_SUBREAPERS_S = subreaper.ENDED_WITHIN_S
_ENDING_S = 5.0
_CHECK_S = 0.02
# Ray's socket paths in a folder are up to 90 characters long; Unix allows 107 in all.
_LONGEST_BASE = 16
_SESSION = 3  # index in the fields of `_stat`


@contextmanager
def run_folder(base: Path | None = None) -> Iterator[Path]:
    """Make a temporary folder owned by this process; at the end, end its remaining processes and remove it.

    Args:
        base: parent folder; by default the temporary directory, or `/tmp` if that is too long for sockets.
    Raises:
        MissingError: there is no room to begin, or something failed and the folder is gone or full by then.
    """
    parent = base or _short_temporary_directory()
    with ExitStack() as stack:
        with _interruptions_wait():
            folder = stack.enter_context(owned(parent / f"{PREFIX}{secrets.token_hex(4)}"))
        try:
            yield folder
        except Exception:
            # The exception may be a consequence that does not mention the folder.
            require_room(folder)
            raise


@contextmanager
def owned(folder: Path) -> Iterator[Path]:
    """Make and own a given folder; at the end, end its remaining processes and remove it.

    Args:
        folder: folder that does not exist yet; its name begins with `PREFIX`, so that `reap` finds it.
    """
    if folder.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))
    cleanup = _start_cleanup(folder)  # before anything exists that a killed driver could leave behind
    try:
        _make_owned(folder)
        yield folder
    finally:
        _remove(folder)
        cleanup.communicate()


def _make_owned(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700)
        (folder / _OWNER).write_text(Owner.this_process().to_text())
    except OSError as error:
        raise _unusable(folder, error.strerror) from None
    require_room(folder, _BEGIN_BYTES)


def require_room(folder: Path, n_bytes: int = _GO_ON_BYTES) -> None:
    """Require a run folder that still exists and has free space.

    Args:
        n_bytes: free bytes needed.
    Raises:
        MissingError: it does not exist, or has too little free space.
    """
    try:
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        raise _unusable(folder, f"{folder.name} removed ({error.strerror})") from None
    if free_bytes < n_bytes:
        raise _unusable(folder, f"{free_bytes / 2**20:.1f} MiB free of {n_bytes / 2**20:g} needed")


def _unusable(folder: Path, got: str | None) -> MissingError:
    return MissingError(
        f"cannot write to the temporary directory {folder.parent}: {got}; make room, or set TMPDIR to another"
    )


def reap(base: Path | None = None) -> tuple[Path, ...]:
    """Remove the folders of this user's dead runs and kill their processes; return the folders."""
    dead = dead_folders(base)
    for folder in dead:
        _remove(folder)
    return dead


def dead_folders(base: Path | None = None) -> tuple[Path, ...]:
    """Find the folders of this user's dead runs."""
    return tuple(
        folder
        for folder in sorted((base or _short_temporary_directory()).glob(f"{PREFIX}*"))
        if _is_own(folder) and _is_dead(folder)
    )


def _is_own(folder: Path) -> bool:
    try:
        status = folder.lstat()
    except OSError:
        return False  # its run has just ended
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def end_processes(folder: Path) -> tuple[int, ...]:
    """Kill every process of a run folder; return their ids.

    Subreapers get time to end their own processes, because they also remove shared memory.
    """
    pids = left = processes_of(folder)
    started_s = time.monotonic()
    while left and (waited_s := time.monotonic() - started_s) < _ENDING_S:
        subreapers = {pid for pid in left if _is_subreaper(pid)} if waited_s < _SUBREAPERS_S else set()
        for pid in subreapers:
            _send(pid, signal.SIGTERM)
        for pid in set(left) - subreapers - descendants(subreapers):
            _send(pid, signal.SIGKILL)
        time.sleep(_CHECK_S)
        left = processes_of(folder)
    return pids


def processes_of(folder: Path) -> tuple[int, ...]:
    """Processes of a run folder and their descendants, without this one and its owner."""
    wanted = f"{RUN_FOLDER_VARIABLE}={folder}".encode()
    owner = _owner_of(folder)
    pids: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if wanted in _environment(entry).split(b"\0") or (
                owner is not None and _works_for(entry, owner, folder)
            ):
                pids.add(int(entry.name))
        except OSError:
            continue  # ended, or another user's
    # Code of a workload can have started processes without any variables.
    below = descendants(pids) - {os.getpid()} - ({owner.pid} if owner is not None else set())
    return tuple(sorted(pids | below)) if pids else ()


def _is_subreaper(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().rstrip("\n") == subreaper.NAME
    except OSError:
        return False


def _works_for(process: Path, owner: Owner, folder: Path) -> bool:
    """True if a process of the owner's session has a file of the folder open for writing.

    Both facts come from the kernel; a process that sets its title, as Ray's agents do, overwrites its
    variables. A process that only reads there, or from another terminal's session, does not count.
    """
    if int(process.name) == owner.pid or _stat(process)[_SESSION] != str(owner.session):
        return False
    below = f"{folder.resolve()}/"
    return any(_writes_below(descriptor, below) for descriptor in (process / "fd").iterdir())


def _writes_below(descriptor: Path, below: str) -> bool:
    try:
        return bool(descriptor.lstat().st_mode & stat.S_IWUSR) and str(descriptor.readlink()).startswith(
            below
        )
    except OSError:
        return False  # closed in the meantime


def _environment(process: Path) -> bytes:
    """Environment variables of a process; waits for one that has just been started."""
    variables = process / "environ"
    limit_s = time.monotonic() + _BEGINNING_S
    while not (content := variables.read_bytes()) and _is_beginning(process) and time.monotonic() < limit_s:
        time.sleep(0.001)
    return content or variables.read_bytes()  # they may have been set between the two reads


def _is_beginning(process: Path) -> bool:
    """True if a process has no variables yet; kernel threads and dead processes have no memory."""
    fields = _stat(process)
    memory_bytes, environment_end = fields[20], fields[48]
    return memory_bytes != "0" and environment_end == "0"


def _stat(process: Path) -> list[str]:
    return (process / "stat").read_text().rpartition(")")[2].split()


def main(argv: Sequence[str]) -> None:
    """Guard a folder: wait until the driver ends or closes standard input, then remove it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # It inherited blocked signals from its driver.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTIONS)
    sys.stdin.buffer.read()
    _remove(Path(argv[0]))


@contextmanager
def _interruptions_wait() -> Iterator[None]:
    """Block signals while something is created, until its removal is registered."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTIONS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_cleanup(folder: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        module_command("harness.provision.temporary_folder", str(folder)),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C in a terminal reaches its whole process group
    )


def _remove(folder: Path) -> None:
    end_processes(folder)
    forget_worktrees(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _owner_of(folder: Path) -> Owner | None:
    try:
        return Owner.of_text((folder / _OWNER).read_text())
    except (OSError, ValueError):
        return None


def _is_dead(folder: Path) -> bool:
    owner = _owner_of(folder)
    if owner is None:
        return _NAME.fullmatch(folder.name) is not None and _is_abandoned(folder)
    return owner.is_dead()


def _is_abandoned(folder: Path) -> bool:
    """True if a driver was killed before it owned the folder; any content belongs to another run."""
    try:
        age_s = time.time() - folder.stat().st_mtime
        return age_s > _OWNERLESS_AGE_S and not any(folder.iterdir())
    except OSError:
        return False


def _short_temporary_directory() -> Path:
    usual = Path(tempfile.gettempdir())
    return usual if len(str(usual)) <= _LONGEST_BASE else Path("/tmp")  # noqa: S108  mkdtemp makes it private


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        return


if __name__ == "__main__":
    main(sys.argv[1:])
