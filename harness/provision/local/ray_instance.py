"""A Ray instance of the run's own on this machine, and its end."""

import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TypeAlias

from harness.errors import first_line
from harness.provision.failures import ProvisionError
from harness.provision.ray.settings import chatter_in, ray_environment, write_token
from harness.provision.temporary.owner import parent, start_time
from harness.provision.temporary.reaper import end_processes, processes_of, require_room

_Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | None
_OBJECT_STORE_BYTES = 256 * 2**20
_OUT_OF_TIME = "timed out"
_TURN_S = 120.0  # then this run starts beside the others: anybody may hold the lock for ever
_CHECK_S = 0.1
_SERVER_NAMES = ("raylet", "gcs_server")
# Ray's word for staying on 127.0.0.1: else it asks the network, or the host's name, for an address, which
# need not be one of this namespace.
_ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnRay:
    """A Ray instance of this process.

    Attributes:
        servers: process id → start time.
        notes: what a record should say of its start.
    """

    servers: Mapping[int, int | None]
    notes: tuple[str, ...]

    def is_up(self) -> bool:
        """Return True while its servers still run."""
        return all(start_time(pid) == started for pid, started in self.servers.items())


@contextmanager
def own_ray(folder: Path, *, n_actors: int, log_path: Path) -> Iterator[OwnRay]:
    """Start Ray for this process alone and connect to it; nothing of it is left when the context ends.

    Args:
        folder: private folder of the run, for its token and its files.
        log_path: where what it would print goes.
    Raises:
        ProvisionError: it does not start, twice where it ran out of time.
    """
    with ExitStack() as stack:
        stack.enter_context(ray_environment(folder, write_token(folder), _ON_LOOPBACK))

        import ray

        stack.enter_context(chatter_in(log_path))
        on_terminate = signal.getsignal(signal.SIGTERM)
        # Ray's native half lets go of the signal too, behind Python's back.
        stack.callback(_hear_terminations, on_terminate)
        stack.callback(ray.shutdown)
        stack.callback(_end_attendants, folder)
        notes: list[str] = []

        def start(temporary: str) -> None:
            with _alone(folder.parent):
                ray.init(
                    address="local",
                    num_cpus=n_actors,
                    include_dashboard=False,
                    object_store_memory=_OBJECT_STORE_BYTES,
                    log_to_driver=False,
                    # One further down, since Ray opens the folder it is given to everybody.
                    _temp_dir=str(folder / temporary),
                )

        try:
            try:
                start("r")
            except Exception as error:
                if _OUT_OF_TIME not in str(error):
                    raise
                require_room(folder)
                # Ray gives its servers 30 s and has no setting for it, which a busy machine can exceed.
                notes.append(f"Ray started at the second attempt: {first_line(str(error))}")
                ray.shutdown()
                end_processes(folder)
                start("s")
        except Exception as error:
            raise ProvisionError(
                f"local: Ray must start on this machine, got {type(error).__name__}: "
                f"{first_line(str(error))}; check free memory, /dev/shm, the temporary directory and what "
                "else keeps this machine busy"
            ) from error
        _hear_terminations(on_terminate)  # Ray installs a handler of its own
        yield OwnRay(servers=_children(_SERVER_NAMES), notes=tuple(notes))


@contextmanager
def _alone(base: Path) -> Iterator[None]:
    """Wait until no other run starts Ray: several at once are too slow for its time-out.

    Args:
        base: folder that they share, which is locked and stays as it is.
    """
    with ExitStack() as stack:
        with suppress(OSError):  # a folder that may not be listed, or that takes no locks
            folder = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, folder)
            limit_s = time.monotonic() + _TURN_S
            while not _is_locked(folder) and time.monotonic() < limit_s:
                time.sleep(_CHECK_S)  # a lock of a file cannot be waited for with a limit
        yield


def _is_locked(folder: int) -> bool:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _end_attendants(folder: Path) -> None:
    """End what Ray runs beside its servers, for whose orderly ends it would wait a second each."""
    servers = _children(_SERVER_NAMES)
    for pid in processes_of(folder):
        if pid not in servers and parent(pid) == os.getpid():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _hear_terminations(handler: _Handler) -> None:
    # Only the main thread may set handlers, and None stands for one that Python has not set.
    if threading.current_thread() is threading.main_thread() and handler is not None:
        signal.signal(signal.SIGTERM, handler)


def _children(names: tuple[str, ...]) -> dict[int, int | None]:
    """Find the children of this process that run one of some programs: process id → start time."""
    children: dict[int, int | None] = {}
    for entry in Path("/proc").iterdir():
        try:
            program = (entry / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
        except (OSError, IndexError):
            continue  # not a process, or one that ended meanwhile
        if Path(program).name in names and parent(int(entry.name)) == os.getpid():
            children[int(entry.name)] = start_time(int(entry.name))
    return children
