"""Workers as Ray actors, and calls to them that end when Ray does."""

from collections.abc import Iterable, Mapping
from typing import Protocol

import ray
from ray.exceptions import RayActorError, RayError

from harness.provision.hosts import Hosts, WorkerSetup
from harness.provision.protocols import StartOptions
from harness.provision.ray.client import while_up
from harness.worker.process.actor import Worker
from harness.worker.process.forked_process import STOPPED_S
from harness.worker.process.messages import CutOff, Died, JobError, Silent

ANSWER_MARGIN_S = 5.0
"""Seconds between an actor's own deadline and the driver's."""
CHECK_S = 1.0
"""Interval of checks that Ray is alive, because references do not show its end."""
_CONCURRENT_CALLS = 8
_KILLED_S = 5.0


class _RemoteMethod(Protocol):
    def remote(self, *args: object) -> ray.ObjectRef: ...


class ActorHandle(Protocol):
    """Ray handle of a `Worker`, whose methods return references."""

    facts: _RemoteMethod
    fork: _RemoteMethod
    call: _RemoteMethod
    kill: _RemoteMethod
    unreachable: _RemoteMethod


def start_actor(setup: WorkerSetup, options: StartOptions, hosts: Hosts, worker: int) -> ActorHandle:
    """Request the actor of one worker on its host; it imports in the meantime."""
    remote = ray.remote(Worker).options(
        max_concurrency=_CONCURRENT_CALLS,
        max_restarts=0,
        max_task_retries=0,
        **setup.resources,
        **hosts.options(worker),
    )
    handle: ActorHandle = remote.remote(
        imports=options.imports,
        preload_s=options.preload_s,
        fork_s=options.fork_s,
        cores=hosts.cores(worker),
        environment=dict(setup.environment),
        log_path=str(setup.remote_log or setup.log.absolute()),
        folder=None if setup.folder is None else str(setup.folder),
        has_probe=setup.has_probe,
    )
    return handle


def ready(references: list[ray.ObjectRef], n: int, timeout_s: float, hosts: Hosts) -> list[ray.ObjectRef]:
    """Wait for `n` answers; return those available when the time is up or Ray has ended."""
    try:
        done, _ = while_up(lambda: ray.wait(references, num_returns=n, timeout=timeout_s), hosts.is_up)
    except ConnectionError:
        return []
    return list(done)


def fetch(reference: ray.ObjectRef, hosts: Hosts) -> object:
    """A ready answer, or the failure of the actor."""
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
    """Kill processes by worker, on every worker whose actor is alive."""
    # A failed host no longer answers, and its processes end when it is replaced.
    reached = [(worker, pid) for worker, pid in pids.items() if hosts.failure(worker) is None]
    if hosts.is_up() and reached:
        references = [actors[worker].kill.remote(pid) for worker, pid in reached]
        ready(references, len(references), _KILLED_S, hosts)
