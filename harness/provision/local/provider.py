"""The `local` provider: a Ray instance of the run's own on this machine, one actor for each worker."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cluster.link_limits import Limits
from harness.cluster.shape import ClusterShape
from harness.host_facts import machine
from harness.provision.accelerators import devices_of_workers, lack_of_tensorflow
from harness.provision.failures import ProvisionError
from harness.provision.local.ray_instance import own_ray
from harness.provision.network_namespace import NOT_ASKED, exposed_line
from harness.provision.protocols import LOOPBACK
from harness.provision.start_limits import USUAL_START, StartLimits
from harness.provision.temporary.reaper import reap, run_folder
from harness.provision.worker_environment import WORKER_IMPORTS, process_variables, temporary_folder

if TYPE_CHECKING:
    from harness.provision.ray.pool import RayCluster

# What a process takes that has imported TensorFlow, before it has a model.
_WORKER_BYTES = 300 * 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class _ThisMachine:
    """The one host of all workers; when it fails, so does the driver."""

    core_sets: Sequence[tuple[int, ...] | None]
    is_up: Callable[[], bool]

    @property
    def addresses(self) -> Sequence[str]:
        return [LOOPBACK] * len(self.core_sets)

    def cores(self, worker: int) -> tuple[int, ...] | None:
        return self.core_sets[worker]

    def options(self, worker: int) -> Mapping[str, object]:
        del worker
        return {}

    def failure(self, worker: int, *, stopped_s: float = 0.0) -> None:
        del worker, stopped_s

    def renew(self, n_workers: int) -> Sequence[int]:
        del n_workers
        if not self.is_up():
            raise ProvisionError(
                "workers: Ray must run, and a server of it has ended; run again with --resume"
            )
        return ()

    def condemn(self, worker: int) -> None:
        del worker  # none has another host

    def admit(self, folder: Path) -> None:
        del folder  # they are processes of the same user

    def limit_links(self, limits: Limits) -> None:
        del limits  # a spec that asks for one is refused, see `registry.Provider.shapes_links`


class LocalProvider:
    """Workers on this machine without containers.

    Args:
        imports: what each worker's zygote imports before it forks.
        limits: how long those imports, and a fork, may take.
        exposure: why strangers on the network can reach what this process starts; None where it has a network
            namespace of its own.
    """

    name = "local"

    def __init__(
        self,
        *,
        imports: Sequence[str] = WORKER_IMPORTS,
        limits: StartLimits = USUAL_START,
        exposure: str | None = NOT_ASKED,
    ) -> None:
        self._imports = tuple(imports)
        self._limits = limits
        self._exposure = exposure

    def require(self, shape: ClusterShape) -> None:
        """See `Provider.require`: there is memory for so many workers, and they have their devices."""
        _require_memory(shape)
        _devices(shape)

    @contextmanager
    def start(
        self,
        shape: ClusterShape,
        run_id: str,
        log_dir: Path,
        *,
        reads: Sequence[Path] = (),
        writes: Sequence[Path] = (),
    ) -> Iterator["RayCluster"]:
        """Bring up workers; nothing of them is left when the context ends. See `Provider.start`.

        It returns when the actors have been asked for; they import while the caller goes on.

        Raises:
            ProvisionError: the machine has too little memory for so many or lacks their devices, or Ray does
                not start.
        """
        _require_memory(shape)
        own_devices = _devices(shape)
        started_s = time.monotonic()
        log_dir.mkdir(parents=True, exist_ok=True)
        reap()
        del reads, writes  # workers see all that the driver sees
        with ExitStack() as stack:
            folder = stack.enter_context(run_folder())
            scratch = folder / "scratch"
            scratch.mkdir()
            ray_log = log_dir / f"ray-{run_id}.log"
            ray = stack.enter_context(own_ray(folder, n_actors=shape.workers, log_path=ray_log))

            from harness.provision.ray.actors import Preload, Seat
            from harness.provision.ray.pool import RayCluster, Traits

            cores = core_sets(sorted(os.sched_getaffinity(0)), shape.workers, shape.cores_per_worker)
            seats = [
                Seat(
                    resources={"num_cpus": 1},
                    environment=process_variables(
                        folder, shape.hardware, temporary_folder(folder), own_devices[worker]
                    ),
                    log=log_dir / f"zygote-{worker}.log",
                )
                for worker in range(shape.workers)
            ]
            cluster = RayCluster(
                seats,
                hosts=_ThisMachine(core_sets=cores, is_up=ray.is_up),
                traits=Traits(
                    notes=[*_notes(shape, pinned=cores[0] is not None, exposure=self._exposure), *ray.notes],
                    isolated=self._exposure is None,
                    scratch=scratch,
                    pinned=cores[0] is not None,
                ),
                started_s=started_s,
                preload=Preload(imports=self._imports, limits=self._limits),
            )
            stack.callback(cluster.stop)
            yield cluster


def core_sets(available: Sequence[int], workers: int, cores_per_worker: int) -> list[tuple[int, ...] | None]:
    """Share cores out: disjoint sets of equal size, or None for every worker when there are too few."""
    if workers * cores_per_worker > len(available):
        return [None] * workers
    return [
        tuple(available[worker * cores_per_worker : (worker + 1) * cores_per_worker])
        for worker in range(workers)
    ]


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


def _notes(shape: ClusterShape, *, pinned: bool, exposure: str | None) -> list[str]:
    notes: list[str] = []
    if not pinned:
        n_available = len(os.sched_getaffinity(0))
        n_wanted = shape.workers * shape.cores_per_worker
        notes.append(f"workers share cores: {n_wanted} asked for, {n_available} available")
    if exposure is not None:
        notes.append(exposed_line(exposure))
    return notes
