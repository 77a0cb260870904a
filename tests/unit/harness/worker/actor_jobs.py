"""Jobs that the tests of the actor run in its processes."""

import ctypes
import mmap
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path

from harness.worker.process.job import JobState


def pid(state: JobState) -> int:
    return os.getpid()


def sleep(state: JobState, seconds: float) -> None:
    Path(os.environ["READY"]).touch()
    time.sleep(seconds)


def close_outputs(state: JobState) -> None:
    sys.stdout.close()
    sys.stderr = None


def interrupt(state: JobState) -> None:
    raise KeyboardInterrupt("of its own")


def environment(state: JobState, name: str) -> str | None:
    return os.environ.get(name)


def start_sleeper(state: JobState) -> int:
    return subprocess.Popen(["sleep", "3600"]).pid


def exit_beside_a_child(state: JobState) -> None:
    """End this process, while a child of it holds its channel."""
    if os.fork() == 0:
        time.sleep(3600)
    os._exit(3)


def start_daemon(state: JobState, makes_memory: bool) -> int:
    """Start a process that leaves its parent, session, group and variables; it may make shared memory."""
    started, starting = os.pipe()
    name = f"stratbench-test-{os.getpid()}-daemon"
    code = (
        "import _posixshmem, mmap, os, time\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        + (
            f"file = _posixshmem.shm_open('/{name}', os.O_CREAT | os.O_RDWR, mode=0o600)\n"
            "os.truncate(file, 4096); held = mmap.mmap(file, 4096)\n"
            if makes_memory
            else ""
        )
        + f"os.write({starting}, str(os.getpid()).encode())\n"
        "time.sleep(3600)\n"
    )
    command = [sys.executable, "-S", "-c", code]
    subprocess.run(command, env={}, pass_fds=(starting,), start_new_session=True, check=True)
    os.close(starting)
    with os.fdopen(started, "rb", buffering=0) as pipe:
        return int(pipe.read(20))


def make_memory(state: JobState, is_tracked: bool) -> str:
    """Make shared memory and drop it, or hold it where Python's own tracker knows nothing of it."""
    memory = shared_memory.SharedMemory(create=True, size=4096)
    if not is_tracked:
        resource_tracker.unregister(f"/{memory.name}", "shared_memory")
        state.stack.callback(memory.close)
    return memory.name


def make_semaphore(state: JobState) -> str:
    """Make a semaphore that nobody closes; return the name of its file."""
    name = f"stratbench-test-{os.getpid()}"
    libc = ctypes.CDLL(None)
    libc.sem_open.restype = ctypes.c_void_p
    assert libc.sem_open(f"/{name}".encode(), os.O_CREAT | os.O_EXCL, ctypes.c_uint(0o600), ctypes.c_uint(1))
    return f"sem.{name}"


def write_cache(state: JobState, path: str) -> None:
    """Write a file and keep it open and mapped, which makes no shared memory of it."""
    with ExitStack() as stack:
        file = stack.enter_context(Path(path).open("w+b"))
        file.truncate(4096)
        stack.enter_context(mmap.mmap(file.fileno(), 4096))
        state.stack.push(stack.pop_all())
