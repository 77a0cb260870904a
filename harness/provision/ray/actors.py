"""Actors of workers, and the protocols of their hosts and files, which each provider implements."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import ray
from ray.exceptions import RayActorError, RayError

from harness.cluster import Limits
from harness.errors import CaseError
from harness.provision import failures
from harness.provision.failures import Awaited
from harness.provision.protocols import StartLimits
from harness.provision.ray.client import while_up
from harness.worker.process.actor import Worker
from harness.worker.process.forked_process import STOPPED_S
from harness.worker.process.messages import CutOff, Died, JobError, Silent


class Hosts(Protocol):
    """The hosts of all workers, by worker."""

    @property
    def addresses(self) -> Sequence[str]:
        """Address of each worker for its peers."""

    def is_up(self) -> bool:
        """True while Ray itself runs."""

    def options(self, worker: int) -> Mapping[str, object]:
        """Arguments of Ray's `options` by which a worker's actor gets to its host, as it is now."""

    def cores(self, worker: int) -> tuple[int, ...] | None:
        """Cores to pin a worker to on its host as it is now; None for all."""

    def failure(self, worker: int, *, stopped_s: float = STOPPED_S) -> Died | Silent | CutOff | None:
        """Failure of a worker's host; None while it is well.

        Args:
            stopped_s: time for which a host may be halted and still count as well.
        """

    def renew(self, n_workers: int) -> Sequence[int]:
        """Replace those among the first hosts that have failed, and return which: their actors are gone.

        Raises:
            ProvisionError: new ones cannot be had, or Ray itself has ended for good.
        """

    def condemn(self, worker: int) -> None:
        """Have a host replaced by the next `renew`, for what was seen of it from others."""

    def admit(self, folder: Path) -> None:
        """Let workers write into a folder that the driver has made."""

    def limit_links(self, limits: Limits) -> None:
        """Limit the links of the first workers, where they are not limited so already.

        Raises:
            ProvisionError: this host cannot.
        """


class Files(Protocol):
    """Transfer of files before and after processes use them."""

    def seen(self, path: Path) -> Path:
        """Path at which workers see a file or folder of the driver's."""

    def bring(self, n_workers: int, folders: Sequence[Path]) -> None:
        """Let the first workers see what others have made, and folders to write to.

        Args:
            folders: of the driver.
        Raises:
            WorkerDied: one of them cannot be given its files.
        """

    def take(self, n_workers: int) -> None:
        """Let the driver, and workers later, see what the first workers have made, where they still live."""


class SharedFiles:
    """Workers see the driver's own file system."""

    def seen(self, path: Path) -> Path:
        return path.absolute()

    def bring(self, n_workers: int, folders: Sequence[Path]) -> None:
        """All is there."""

    def take(self, n_workers: int) -> None:
        """All is here."""


ANSWER_MARGIN_S = 5.0
"""Between an actor's own deadline and the driver's."""
CHECK_S = 1.0
"""Between two looks at Ray itself, whose end no reference tells."""
_CONCURRENT_CALLS = 8
_KILLED_S = 5.0


class _RemoteMethod(Protocol):
    def remote(self, *args: object) -> ray.ObjectRef: ...


class ActorHandle(Protocol):
    """A Ray handle of `Worker`, whose methods answer with references."""

    facts: _RemoteMethod
    fork: _RemoteMethod
    call: _RemoteMethod
    kill: _RemoteMethod
    unreachable: _RemoteMethod


@dataclass(frozen=True, kw_only=True, slots=True)
class Preload:
    """Imports of each worker's zygote, and limits of its start and forks."""

    imports: tuple[str, ...]
    limits: StartLimits


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """Place of one worker's actor and settings of its processes.

    Attributes:
        resources: arguments of Ray's `options` for what it takes of its host.
        environment: variables of its processes.
        folder: current one of its processes, None for the actor's own.
        log: where the driver finds what its zygote says. remote_log: where the zygote writes that, if it is
            another place.
        host_log: where the provider keeps what the worker's host says, if it does, once that is removed.
        has_probe: whether other workers look whether they reach it.
    """

    resources: Mapping[str, object]
    environment: Mapping[str, str]
    log: Path
    remote_log: Path | None = None
    host_log: Path | None = None
    folder: Path | None = None
    has_probe: bool = False


def start_actor(seat: Seat, preload: Preload, hosts: Hosts, worker: int) -> ActorHandle:
    """Ask Ray for the actor of one worker on its host; it imports while the caller goes on."""
    remote = ray.remote(Worker).options(
        max_concurrency=_CONCURRENT_CALLS,
        max_restarts=0,
        max_task_retries=0,
        **seat.resources,
        **hosts.options(worker),
    )
    handle: ActorHandle = remote.remote(
        imports=preload.imports,
        preload_s=preload.limits.preload_s,
        fork_s=preload.limits.fork_s,
        cores=hosts.cores(worker),
        environment=dict(seat.environment),
        log_path=str(seat.remote_log or seat.log.absolute()),
        folder=None if seat.folder is None else str(seat.folder),
        has_probe=seat.has_probe,
    )
    return handle


def ready(references: list[ray.ObjectRef], n: int, timeout_s: float, hosts: Hosts) -> list[ray.ObjectRef]:
    """Wait for `n` of some answers; return those that are there when the time is up or Ray has ended."""
    try:
        done, _ = while_up(lambda: ray.wait(references, num_returns=n, timeout=timeout_s), hosts.is_up)
    except ConnectionError:
        return []
    return list(done)


def fetch(reference: ray.ObjectRef, hosts: Hosts) -> object:
    """An answer that is there, or what became of the actor that owed it."""
    try:
        return while_up(lambda: ray.get(reference), hosts.is_up)
    except (RayActorError, ConnectionError):
        return Died(what="actor", exit_code=None)
    except RayError as error:
        return JobError.of(error)


def failures_of_hosts(
    hosts: Hosts, workers: Iterable[int], *, stopped_s: float = STOPPED_S
) -> dict[int, Died | Silent | CutOff]:
    """Failures of hosts by worker; see `Hosts.failure`."""
    by_worker = {worker: hosts.failure(worker, stopped_s=stopped_s) for worker in workers}
    return {worker: failure for worker, failure in by_worker.items() if failure is not None}


def kill_processes(actors: Mapping[int, ActorHandle], pids: Mapping[int, int], hosts: Hosts) -> None:
    """Kill processes by worker, wherever somebody is left to do it."""
    # A host that has failed answers no more and takes its processes with it when it is replaced.
    reached = [(worker, pid) for worker, pid in pids.items() if hosts.failure(worker) is None]
    if hosts.is_up() and reached:
        references = [actors[worker].kill.remote(pid) for worker, pid in reached]
        ready(references, len(references), _KILLED_S, hosts)


def failure_of(value: object, awaited: Awaited) -> CaseError:
    """The error of a case for an answer that is none."""
    match value:
        case Died():
            return failures.worker_died(value, awaited)
        case Silent():
            return failures.worker_unresponsive(value, awaited)
        case CutOff():
            return failures.link_down(value, awaited)
        case JobError():
            return failures.job_failed(value, awaited)
    raise TypeError(f"worker {awaited.worker} answered {awaited.what} with {type(value).__name__}")
