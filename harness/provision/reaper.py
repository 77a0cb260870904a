"""Temporary folders of runs, and the removal of what dead runs have left in them and running.

Each folder has a guard, `python -m harness.provision.reaper FOLDER`: when its driver ends, however it ends,
the guard kills what still runs in the folder's name and removes it. Ray's own ties leave agents behind that
were just starting when the driver was killed.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from harness.provision.owner import Owner

# In the environment of every process of a run; its value is the run's folder.
RUN_FOLDER_VARIABLE = "STRATBENCH_RUN_FOLDER"

PREFIX = "stratbench-"
_INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OWNER = "owner.json"
_OWNERLESS_AGE_S = 60.0
_BEGINNING_S = 1.0
# A folder's name and Ray's sockets in it take up to 90 characters; Unix allows 107 in all.
_LONGEST_BASE = 16


@contextmanager
def run_folder(base: Path | None = None) -> Iterator[Path]:
    """Make a private folder that this process owns; then end what still runs in its name and remove it.

    Args:
        base: parent, default the temporary directory where its name is short enough for sockets, else `/tmp`.
    """
    parent = base or _short_temporary_directory()
    with ExitStack() as stack:
        with _interruptions_wait():
            folder = stack.enter_context(owned(Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))))
        yield folder


@contextmanager
def owned(folder: Path) -> Iterator[Path]:
    """Own a private folder that was just made; then end what still runs in its name and remove it.

    Args:
        folder: its name begins with `PREFIX`, by which `reap` finds it.
    """
    guard = _start_guard(folder)
    try:
        (folder / _OWNER).write_text(Owner.this_process().to_text())
        yield folder
    finally:
        _remove(folder)
        guard.communicate()


def reap(base: Path | None = None) -> tuple[Path, ...]:
    """Remove the folders of this user's dead runs and end the processes they left; return the folders."""
    dead = [
        folder
        for folder in sorted((base or _short_temporary_directory()).glob(f"{PREFIX}*"))
        if folder.is_dir()
        and not folder.is_symlink()
        and folder.stat().st_uid == os.getuid()
        and _is_dead(folder)
    ]
    for folder in dead:
        _remove(folder)
    return tuple(dead)


def end_processes(folder: Path, *, deadline_s: float = 5.0) -> tuple[int, ...]:
    """Kill every process that carries the folder in its environment; return the ids of those found."""
    found = processes_of(folder)
    for pid in found:
        _kill(pid)
    limit_s = time.monotonic() + deadline_s
    while time.monotonic() < limit_s and (left := processes_of(folder)):
        for pid in left:
            _kill(pid)
        time.sleep(0.02)
    return found


def processes_of(folder: Path) -> tuple[int, ...]:
    """Find the processes, other than this one, that were started in the name of a run folder."""
    wanted = f"{RUN_FOLDER_VARIABLE}={folder}".encode()
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = _environment(entry)
        except OSError:
            continue  # ended meanwhile, or somebody else's
        if wanted in environment.split(b"\0"):
            found.append(int(entry.name))
    return tuple(found)


def _environment(process: Path) -> bytes:
    """Variables of a process; of one that has just begun to run a program, as soon as it has any."""
    variables = process / "environ"
    limit_s = time.monotonic() + _BEGINNING_S
    while not (found := variables.read_bytes()) and _is_beginning(process) and time.monotonic() < limit_s:
        time.sleep(0.001)
    return found or variables.read_bytes()  # which may have come between the two looks


def _is_beginning(process: Path) -> bool:
    """Whether a process has its variables still to come; the kernel's threads and the dead have no memory."""
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    memory_bytes, environment_end = fields[20], fields[48]
    return memory_bytes != "0" and environment_end == "0"


def main(argv: Sequence[str]) -> None:
    """Guard a folder: wait until the driver closes standard input, by its end or in order, then remove it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # It was started while its driver heard none.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTIONS)
    sys.stdin.buffer.read()
    _remove(Path(argv[0]))


@contextmanager
def _interruptions_wait() -> Iterator[None]:
    """Hear signals only when what is being made is also going to be removed."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTIONS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_guard(folder: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "harness.provision.reaper", str(folder)]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C in a terminal reaches its whole process group
    )


def _remove(folder: Path) -> None:
    end_processes(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _is_dead(folder: Path) -> bool:
    try:
        return Owner.of_text((folder / _OWNER).read_text()).is_dead()
    except (OSError, ValueError):
        return _is_abandoned(folder)


def _is_abandoned(folder: Path) -> bool:
    """Whether a driver was killed before it could own the folder; anything in it is somebody else's."""
    try:
        age_s = time.time() - folder.stat().st_mtime
        return age_s > _OWNERLESS_AGE_S and not any(folder.iterdir())
    except OSError:
        return False


def _short_temporary_directory() -> Path:
    usual = Path(tempfile.gettempdir())
    return usual if len(str(usual)) <= _LONGEST_BASE else Path("/tmp")  # noqa: S108  mkdtemp makes it private


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return


if __name__ == "__main__":
    main(sys.argv[1:])
