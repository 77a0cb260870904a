"""Workers that are Ray actors: what every provider does once a Ray instance is there."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import ray
from ray.exceptions import RayActorError, RayError

from harness.errors import CaseError
from harness.links import Limits
from harness.provision import failures
from harness.provision.failures import Awaited
from harness.provision.files import Files, SharedFiles
from harness.provision.ray_client import while_up
from harness.worker.actor import Worker, WorkerFacts
from harness.worker.door import Door
from harness.worker.replies import Answer, CutOff, Died, JobError, Silent, pack_job, unpack_answer

_MARGIN_S = 5.0  # between an actor's own deadline and the driver's
_GRACE_S = 2.0  # for the cause of an error to show: peers of a dead worker fail at the same time as it
_CHECK_S = 1.0  # between two looks at Ray itself, whose end no reference tells
_KNOCK_S = 5.0  # between two looks whether workers reach each other
_KNOCK_WAIT_S = 4.0  # so long that a busy machine answers
_CONCURRENT_CALLS = 8


class _RemoteMethod(Protocol):
    def remote(self, *args: object) -> ray.ObjectRef: ...


class ActorHandle(Protocol):
    """A Ray handle of `Worker`, whose methods answer with references."""

    facts: _RemoteMethod
    fork: _RemoteMethod
    call: _RemoteMethod
    kill: _RemoteMethod
    unanswered: _RemoteMethod


class Hosts(Protocol):
    """Where the workers of a cluster run, as their provider watches over it."""

    @property
    def addresses(self) -> Sequence[str]:
        """Of each worker, where its peers reach it."""

    def is_up(self) -> bool:
        """Whether Ray itself still runs."""

    def failure(self, worker: int) -> Died | Silent | None:
        """What has become of a worker's host; None while it is well."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
class ActorOptions:
    """How to start the actor of one worker.

    Attributes:
        resources: arguments of Ray's `options` that place it.
        arguments: of `Worker`.
        log: where the driver finds what the worker's zygote says.
    """

    resources: dict[str, object]
    arguments: dict[str, object]
    log: Path


class RayCluster:
    """Workers as actors of the Ray instance that this process is connected to.

    Args:
        options: one for each worker.
        hosts: where they run.
        scratch: folder that driver and workers see.
        pinned: whether each has cores of its own.
        preload_s: how long a worker may take to be ready.
        isolated: see `Cluster`.
        files: how those of driver and workers get to the other; None where both see the same.
    """

    def __init__(
        self,
        options: Sequence[ActorOptions],
        *,
        hosts: Hosts,
        scratch: Path,
        pinned: bool,
        started_s: float,
        preload_s: float,
        notes: Sequence[str] = (),
        isolated: bool,
        files: Files | None = None,
    ) -> None:
        self._files = files or SharedFiles()
        self.pinned = pinned
        self.notes = tuple(notes)
        self.isolated = isolated
        self.scratch = scratch
        self._hosts = hosts
        self._options = tuple(options)
        self._started_s = started_s
        self._preload_s = preload_s
        self._provision_s: float | None = None
        self._doors: dict[int, int] = {}
        self._links: Limits = ()
        self._actors = [_start_actor(option) for option in self._options]

    @property
    def provision_s(self) -> float | None:
        """Seconds from the start to the last worker's first readiness; None before that."""
        return self._provision_s

    def seen(self, path: Path) -> Path:
        """Where workers see a file or folder of the driver's."""
        return self._files.seen(path)

    def wait_ready(self, n_workers: int) -> Sequence[WorkerFacts]:
        """Wait until the first `n_workers` can fork; dead workers are replaced, and hosts that have failed.

        Raises:
            ProvisionError: Ray itself has ended, or a host cannot be replaced.
        """
        self._replace(self._hosts.renew(n_workers))
        replies = self._ask(n_workers, lambda actor, _: actor.facts.remote(), self._preload_s)
        lost = [worker for worker, reply in enumerate(replies) if not isinstance(reply, WorkerFacts)]
        if lost:
            self._files.take(n_workers)
            self._replace({*lost, *self._hosts.renew(n_workers)})
            replies = self._ask(n_workers, lambda actor, _: actor.facts.remote(), self._preload_s)
        facts = [self._up(worker, reply) for worker, reply in enumerate(replies)]
        self._doors.update({worker: each.door for worker, each in enumerate(facts) if each.door is not None})
        if self._provision_s is None and n_workers == len(self._actors):
            self._provision_s = time.monotonic() - self._started_s
        return facts

    def limit_links(self, limits: Limits) -> None:
        """Limit the links of workers in all sessions opened from now on; see `Cluster.limit_links`."""
        self._links = tuple(limits)

    @contextlib.contextmanager
    def open_session(self, n_workers: int, log_paths: Sequence[Path]) -> Iterator["RayProcessSet"]:
        """Fork a fresh process on each of the first `n_workers`; all are dead when the context ends."""
        if not 1 <= n_workers <= len(self._actors) or len(log_paths) != n_workers:
            raise ValueError(f"{n_workers} workers of {len(self._actors)} with {len(log_paths)} logs")
        self.wait_ready(n_workers)
        self._hosts.limit_links(self._links[:n_workers])
        for path in log_paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._hosts.admit(path.parent)
        with ExitStack() as stack:
            pids: dict[int, int] = {}
            self._files.bring(n_workers, [path.parent for path in log_paths])
            stack.callback(self._files.take, n_workers)
            stack.callback(_kill_processes, self._actors, pids, self._hosts)
            logs = [str(self._files.seen(path)) for path in log_paths]
            replies = self._ask(
                n_workers, lambda actor, worker: actor.fork.remote(logs[worker]), self._preload_s
            )
            pids.update({worker: reply for worker, reply in enumerate(replies) if isinstance(reply, int)})
            for worker, reply in enumerate(replies):
                if not isinstance(reply, int):
                    awaited = Awaited(worker=worker, what="a fork", waited_s=0.0, log=None, stage="run")
                    raise _failure(reply, awaited)
            doors = tuple(
                (address, self._doors[worker])
                for worker, address in enumerate(self._hosts.addresses[:n_workers])
                if worker in self._doors
            )
            yield RayProcessSet(self._actors[:n_workers], pids, log_paths, self._hosts, doors, self._files)

    def stop(self) -> None:
        """Kill the actors, and with them their zygotes and processes."""
        for actor in self._actors:
            with contextlib.suppress(RayError, ConnectionError):
                ray.kill(actor, no_restart=True)

    def _replace(self, workers: Iterable[int]) -> None:
        for worker in workers:
            with contextlib.suppress(RayError, ConnectionError):
                ray.kill(self._actors[worker], no_restart=True)
            self._actors[worker] = _start_actor(self._options[worker])

    def _up(self, worker: int, reply: object) -> WorkerFacts:
        if isinstance(reply, WorkerFacts):
            return reply
        self._files.take(len(self._actors))
        log = self._options[worker].log
        waited_s = time.monotonic() - self._started_s
        raise _failure(
            reply, Awaited(worker=worker, what="its start", waited_s=waited_s, log=log, stage="provision")
        )

    def _ask(
        self, n_workers: int, ask: Callable[[ActorHandle, int], ray.ObjectRef], timeout_s: float
    ) -> list[object]:
        pending = {ask(self._actors[worker], worker): worker for worker in range(n_workers)}
        replies: dict[int, object] = {}
        limit_s = time.monotonic() + timeout_s + _MARGIN_S
        while pending and time.monotonic() < limit_s and self._hosts.is_up():
            ready = _ready(list(pending), len(pending), _CHECK_S, self._hosts)
            replies.update({pending.pop(reference): _fetch(reference, self._hosts) for reference in ready})
            failed = _failures(self._hosts, pending.values())
            replies.update(failed)
            pending = {reference: worker for reference, worker in pending.items() if worker not in failed}
        return [replies.get(worker, Silent(waited_s=timeout_s)) for worker in range(n_workers)]


class RayProcessSet:
    """Fresh processes, one on each worker; made by `RayCluster.open_session`."""

    def __init__(
        self,
        actors: Sequence[ActorHandle],
        pids: dict[int, int],
        log_paths: Sequence[Path],
        hosts: Hosts,
        doors: Sequence[Door],
        files: Files,
    ) -> None:
        self._files = files
        self._actors = list(actors)
        self._pids = pids
        self._log_paths = tuple(log_paths)
        self._hosts = hosts
        self._doors = tuple(doors)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids in worker order, as the worker's host counts them."""
        return tuple(self._pids[worker] for worker in range(len(self._actors)))

    @property
    def hosts(self) -> tuple[str, ...]:
        """Addresses in worker order at which the processes reach each other."""
        return tuple(self._hosts.addresses[: len(self._actors)])

    def call(
        self,
        function: str,
        per_worker_args: Sequence[tuple[object, ...]],
        *,
        timeout_s: float,
        stage: str = "run",
    ) -> list[object]:
        """Run `package.module:function(state, *args)` in all processes at once; see `ProcessSet.call`."""
        if len(per_worker_args) != len(self._actors):
            raise ValueError(f"{len(per_worker_args)} argument tuples for {len(self._actors)} processes")
        return self._run(function, dict(enumerate(per_worker_args)), timeout_s, stage)

    def call_one(
        self, worker: int, function: str, args: tuple[object, ...], *, timeout_s: float, stage: str = "run"
    ) -> object:
        """Run a job in one process; see `ProcessSet.call_one`."""
        return self._run(function, {worker: args}, timeout_s, stage)[0]

    def _run(
        self, function: str, args: dict[int, tuple[object, ...]], timeout_s: float, stage: str
    ) -> list[object]:
        started_s = time.monotonic()
        try:
            pending = {
                self._actors[worker].call.remote(
                    self._pids[worker], pack_job(function, arguments), timeout_s
                ): worker
                for worker, arguments in args.items()
            }
            results, failed = self._gather(pending, timeout_s)
        except Exception:  # Ray's client raises no other when its head has gone
            if self._hosts.is_up():
                raise
            results, failed = {}, _without_ray(args)
        if not failed:
            return [results[worker] for worker in args]
        _kill_processes(self._actors, self._pids, self._hosts)
        self._files.take(len(self._actors))
        worker, value = min(failed.items(), key=lambda item: (not _is_a_cause(item[1]), item[0]))
        awaited = Awaited(
            worker=worker,
            what=function.rpartition(":")[2],
            waited_s=time.monotonic() - started_s,
            log=self._log_paths[worker],
            stage=stage,
        )
        raise _failure(value, awaited)

    def _gather(
        self, pending: dict[ray.ObjectRef, int], timeout_s: float
    ) -> tuple[dict[int, object], dict[int, object]]:
        """Collect results and failures by worker; after a failure that explains itself the rest is left."""
        results: dict[int, object] = {}
        failed: dict[int, object] = {}
        limit_s = time.monotonic() + timeout_s + _MARGIN_S
        knock_s = time.monotonic() + _KNOCK_S
        while pending and time.monotonic() < limit_s:
            if not self._hosts.is_up():
                return results, _without_ray(pending.values())
            if time.monotonic() > knock_s:
                failed.update(self._cut_off())
                knock_s = time.monotonic() + _KNOCK_S
            failed.update(_failures(self._hosts, pending.values()))
            if any(_is_a_cause(value) for value in failed.values()):
                return results, failed
            left_s = max(0.0, limit_s - time.monotonic())
            ready = _ready(list(pending), 1, min(_CHECK_S, left_s), self._hosts)
            for reference in ready:
                worker = pending.pop(reference)
                reply = _fetch(reference, self._hosts)
                value = unpack_answer(reply.payload) if isinstance(reply, Answer) else reply
                if isinstance(value, JobError | Died | Silent):
                    failed[worker] = value
                    limit_s = min(limit_s, time.monotonic() + _GRACE_S)
                else:
                    results[worker] = value
        return results, failed or {worker: Silent(waited_s=timeout_s) for worker in pending.values()}

    def _cut_off(self) -> dict[int, CutOff]:
        """Let workers knock at each other's doors; return those from which another is not reached."""
        if len(self._doors) < 2:
            return {}
        asked = {
            actor.unanswered.remote(self._doors, _KNOCK_WAIT_S): worker
            for worker, actor in enumerate(self._actors)
        }
        found: dict[int, CutOff] = {}
        for reference in _ready(list(asked), len(asked), _KNOCK_WAIT_S + _CHECK_S, self._hosts):
            missed = _fetch(reference, self._hosts)
            if isinstance(missed, list) and missed:
                found[asked[reference]] = CutOff(peer=missed[0], waited_s=_KNOCK_WAIT_S)
        for worker, cut in found.items():
            self._hosts.condemn(worker)
            self._hosts.condemn(cut.peer)
        return found


def _start_actor(options: ActorOptions) -> ActorHandle:
    remote = ray.remote(Worker).options(
        max_concurrency=_CONCURRENT_CALLS, max_restarts=0, max_task_retries=0, **options.resources
    )
    handle: ActorHandle = remote.remote(**options.arguments)
    return handle


def _ready(references: list[ray.ObjectRef], n: int, timeout_s: float, hosts: Hosts) -> list[ray.ObjectRef]:
    try:
        ready, _ = while_up(lambda: ray.wait(references, num_returns=n, timeout=timeout_s), hosts.is_up)
    except ConnectionError:
        return []
    return list(ready)


def _fetch(reference: ray.ObjectRef, hosts: Hosts) -> object:
    try:
        return while_up(lambda: ray.get(reference), hosts.is_up)
    except (RayActorError, ConnectionError):
        return Died(what="actor", exit_code=None)
    except RayError as error:
        return JobError.of(error)


def _is_a_cause(value: object) -> bool:
    """Whether a failure explains itself; any other error may be a peer's answer to one of these."""
    match value:
        case Died() | CutOff():
            return True
        case JobError():
            return value.kind is not None
        case Silent():
            return value.is_stopped
    return False


def _without_ray(workers: Iterable[int]) -> dict[int, object]:
    return {worker: Died(what="Ray node", exit_code=None) for worker in workers}


def _failures(hosts: Hosts, workers: Iterable[int]) -> dict[int, Died | Silent]:
    found = {worker: hosts.failure(worker) for worker in workers}
    return {worker: failure for worker, failure in found.items() if failure is not None}


def _kill_processes(actors: Sequence[ActorHandle], pids: dict[int, int], hosts: Hosts) -> None:
    # A host that has failed answers no more and takes its processes with it when it is replaced.
    reached = [(worker, pid) for worker, pid in pids.items() if hosts.failure(worker) is None]
    if hosts.is_up() and reached:
        references = [actors[worker].kill.remote(pid) for worker, pid in reached]
        _ready(references, len(references), _MARGIN_S, hosts)


def _failure(value: object, awaited: Awaited) -> CaseError:
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
