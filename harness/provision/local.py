"""The `local` provider: a private Ray instance on this machine, one actor for each worker."""

import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TypeAlias

from harness.cluster import ClusterShape
from harness.errors import first_line
from harness.host_facts import machine
from harness.provision.accelerators import devices_of_workers, lack_of_tensorflow
from harness.provision.failures import ProvisionError
from harness.provision.hosts import Hosts, WorkerSetup
from harness.provision.network_namespace import exposed_line
from harness.provision.protocols import LOOPBACK, USUAL_START, ClusterFacts, StartOptions
from harness.provision.ray.settings import chatter_in, ray_environment, write_token
from harness.provision.temporary_folder import (
    end_processes,
    parent,
    processes_of,
    reap,
    require_room,
    run_folder,
    start_time,
)
from harness.provision.worker_environment import process_variables, temporary_folder

if TYPE_CHECKING:
    from harness.provision.ray.pool import RayCluster


_Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | None
_OBJECT_STORE_BYTES = 256 * 2**20
_OUT_OF_TIME = "timed out"
_LOCK_WAIT_S = 120.0  # then it no longer waits: a process could hold the lock forever
_CHECK_S = 0.1
_SERVER_NAMES = ("raylet", "gcs_server")
# Ray's setting for staying on 127.0.0.1; else it derives an address from the network or the host name,
# which may be outside this namespace.
_ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnRay:
    """A Ray instance started by this process.

    Attributes:
        servers: process id → start time.
        notes: notes on its start, for the record.
    """

    servers: Mapping[int, int | None]
    notes: tuple[str, ...]

    def is_up(self) -> bool:
        return all(start_time(pid) == started for pid, started in self.servers.items())


@contextmanager
def own_ray(folder: Path, *, n_actors: int, log_path: Path) -> Iterator[OwnRay]:
    """Start Ray for this process alone and connect to it; it is removed when the context ends.

    Args:
        folder: temporary folder of the run, for Ray's token and files.
        log_path: file for Ray's output.
    Raises:
        ProvisionError: Ray did not start; a timeout is retried once.
    """
    with ExitStack() as stack:
        stack.enter_context(ray_environment(folder, write_token(folder), _ON_LOOPBACK))

        import ray

        stack.enter_context(chatter_in(log_path))
        on_terminate = signal.getsignal(signal.SIGTERM)
        # Ray's C++ core also resets the signal's handler, which Python does not notice.
        stack.callback(_restore_handler, on_terminate)
        stack.callback(ray.shutdown)
        stack.callback(_kill_helper_processes, folder)
        try:
            notes = _start_ray(folder, n_actors)
        except Exception as error:
            raise ProvisionError(
                f"local: Ray did not start on this machine: {type(error).__name__}: "
                f"{first_line(str(error))}; check free memory, /dev/shm, the temporary directory and what "
                "else keeps this machine busy"
            ) from error
        _restore_handler(on_terminate)  # Ray installs its own handler
        yield OwnRay(servers=_children(_SERVER_NAMES), notes=notes)


def _start_ray(folder: Path, n_actors: int) -> tuple[str, ...]:
    """Start Ray, after a timeout once more; return a note on the second attempt."""
    import ray

    def start(temporary: str) -> None:
        with _one_start_at_a_time(folder.parent):
            ray.init(
                address="local",
                num_cpus=n_actors,
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                log_to_driver=False,
                # In a subfolder, because Ray makes its folder accessible to everybody.
                _temp_dir=str(folder / temporary),
            )

    try:
        start("r")
    except Exception as error:
        if _OUT_OF_TIME not in str(error):
            raise
        require_room(folder)
        # Ray gives its servers a fixed 30 s, which can be too short on a busy machine.
        ray.shutdown()
        end_processes(folder)
        start("s")
        return (f"Ray started at the second attempt: {first_line(str(error))}",)
    return ()


@contextmanager
def _one_start_at_a_time(base: Path) -> Iterator[None]:
    """Wait until no other run is starting Ray, because simultaneous starts exceed Ray's time limit.

    Args:
        base: folder shared by the runs, which is locked and not changed.
    """
    with ExitStack() as stack:
        with suppress(OSError):  # a folder that cannot be listed or locked
            folder = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, folder)
            limit_s = time.monotonic() + _LOCK_WAIT_S
            while not _is_locked(folder) and time.monotonic() < limit_s:
                time.sleep(_CHECK_S)  # waiting for a file lock has no time limit
        yield


def _is_locked(folder: int) -> bool:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _kill_helper_processes(folder: Path) -> None:
    """Kill Ray's helper processes, which take a second each to end in order."""
    servers = _children(_SERVER_NAMES)
    for pid in processes_of(folder):
        if pid not in servers and parent(pid) == os.getpid():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _restore_handler(handler: _Handler) -> None:
    # Only the main thread may set handlers; None stands for a handler that Python did not set.
    if threading.current_thread() is threading.main_thread() and handler is not None:
        signal.signal(signal.SIGTERM, handler)


def _children(names: tuple[str, ...]) -> dict[int, int | None]:
    children: dict[int, int | None] = {}
    for entry in Path("/proc").iterdir():
        try:
            program = (entry / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
        except (OSError, IndexError):
            continue  # not a process, or an ended one
        if Path(program).name in names and parent(int(entry.name)) == os.getpid():
            children[int(entry.name)] = start_time(int(entry.name))
    return children


# Memory of a process after importing TensorFlow, before it has a model.
_WORKER_BYTES = 300 * 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class _ThisMachine(Hosts):
    """This machine as the one host of all workers; it cannot fail without the driver."""

    core_sets: Sequence[tuple[int, ...]]
    ray: OwnRay

    @property
    def addresses(self) -> Sequence[str]:
        return [LOOPBACK] * len(self.core_sets)

    def is_up(self) -> bool:
        return self.ray.is_up()

    def cores(self, worker: int) -> tuple[int, ...] | None:
        return self.core_sets[worker]

    def replace_failed(self, n_workers: int) -> Sequence[int]:
        del n_workers
        if not self.is_up():
            raise ProvisionError("workers: a Ray server has ended; run again with --resume")
        return ()


def require(shape: ClusterShape) -> None:
    """Check that memory and devices suffice for the workers."""
    _require_memory(shape)
    _devices(shape)


@contextmanager
def start(
    shape: ClusterShape,
    run_id: str,
    log_dir: Path,
    options: StartOptions = USUAL_START,
    *,
    reads: Sequence[Path] = (),
    writes: Sequence[Path] = (),
) -> Iterator["RayCluster"]:
    """Start workers; returns once the actors are requested, which import in the meantime."""
    _require_memory(shape)
    own_devices = _devices(shape)
    started_s = time.monotonic()
    log_dir.mkdir(parents=True, exist_ok=True)
    reap()
    del reads, writes  # workers have the driver's file system
    with ExitStack() as stack:
        folder = stack.enter_context(run_folder())
        scratch = folder / "scratch"
        scratch.mkdir()
        ray_log = log_dir / f"ray-{run_id}.log"
        ray = stack.enter_context(own_ray(folder, n_actors=shape.workers, log_path=ray_log))

        from harness.provision.ray.pool import RayCluster

        available = sorted(os.sched_getaffinity(0))
        cores = core_sets(available, shape.workers, shape.cores_per_worker)
        setups = [
            WorkerSetup(
                resources={"num_cpus": 1},
                environment=process_variables(
                    folder, shape.hardware, temporary_folder(folder), own_devices[worker]
                ),
                log=log_dir / f"fork-server-{worker}.log",
            )
            for worker in range(shape.workers)
        ]
        facts = ClusterFacts(
            notes=(
                *(() if options.exposure is None else (exposed_line(options.exposure),)),
                *ray.notes,
            ),
            n_cores=len(available),
            exposed=options.exposure is not None,
        )
        cluster = RayCluster(
            setups,
            hosts=_ThisMachine(core_sets=cores, ray=ray),
            scratch=scratch,
            facts=lambda: facts,
            started_s=started_s,
            options=options,
        )
        stack.callback(cluster.stop)
        yield cluster


def core_sets(available: Sequence[int], workers: int, cores_per_worker: int) -> list[tuple[int, ...]]:
    """Cores of each worker: disjoint sets, assigned round-robin if there are too few.

    Unpinned workers would be moved between cores, and wait for a busy core while another is idle.
    """
    size = min(cores_per_worker, len(available))
    n_sets = min(workers, len(available) // size)
    sets = [tuple(available[number * size : (number + 1) * size]) for number in range(n_sets)]
    return [sets[worker % n_sets] for worker in range(workers)]


def _require_memory(shape: ClusterShape) -> None:
    total_bytes = machine().memory_bytes
    if total_bytes is None:
        return
    n_workers, needed_bytes = shape.workers, shape.workers * _WORKER_BYTES
    if (shape.memory_bytes or 0) > total_bytes:
        raise ProvisionError(
            f"must fit this machine, which has {total_bytes / 2**30:.1f} GiB, got "
            f"{(shape.memory_bytes or 0) / 2**30:.1f} GiB; lower it",
            field="cluster.memory_per_worker",
        )
    if needed_bytes > total_bytes:
        raise ProvisionError(
            f"{n_workers} workers on this machine need at least {needed_bytes / 2**30:.0f} GiB of memory, "
            f"got {total_bytes / 2**30:.0f} GiB; lower it",
            field="cluster.workers",
        )


def _devices(shape: ClusterShape) -> Sequence[Sequence[str]]:
    devices = devices_of_workers(shape)
    lacking = lack_of_tensorflow(shape.hardware)
    if lacking is not None:
        raise lacking
    return devices
