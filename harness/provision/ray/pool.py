"""Workers as Ray actors: the common part of all providers, given a running Ray instance."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import ray
from ray.exceptions import RayError

from harness.cluster import Limits
from harness.provision.failures import Awaited, failure_of
from harness.provision.hosts import Files, Hosts, SharedFiles, WorkerSetup
from harness.provision.protocols import ClusterFacts, StartOptions
from harness.provision.ray.actors import (
    ANSWER_MARGIN_S,
    CHECK_S,
    ActorHandle,
    failures_of_hosts,
    fetch,
    kill_processes,
    ready,
    start_actor,
)
from harness.provision.ray.process_set import RayProcessSet
from harness.worker.process.actor import WorkerFacts
from harness.worker.process.messages import Died, Silent
from harness.worker.process.reachability import ProbeAddress


class RayCluster:
    """Workers as actors of the connected Ray instance.

    Args:
        setups: settings of each worker.
        hosts: hosts of the workers.
        scratch: folder that all workers see.
        facts: returns current facts about the workers; notes on forks and `provision_s` are added to them.
        started_s: time of the request for them, on the monotonic clock.
        files: transfer of files; None if workers share the driver's file system.
    """

    def __init__(
        self,
        setups: Sequence[WorkerSetup],
        *,
        hosts: Hosts,
        scratch: Path,
        facts: Callable[[], ClusterFacts],
        started_s: float,
        options: StartOptions,
        files: Files | None = None,
    ) -> None:
        self._files = files or SharedFiles()
        self.scratch = scratch
        self._facts = facts
        self._n_threads: dict[int, int] = {}
        self._hosts = hosts
        self._setups = tuple(setups)
        self._started_s = started_s
        self._asked_s = [started_s] * len(self._setups)
        self._options = options
        self._ready_s: dict[int, float] = {}
        self._probe_ports: dict[int, int] = {}
        self._links: Limits = ()
        self._actors = {
            worker: start_actor(setup, options, hosts, worker) for worker, setup in enumerate(self._setups)
        }

    def facts(self) -> ClusterFacts:
        is_ready = len(self._ready_s) == len(self._setups)
        facts = self._facts()
        return replace(
            facts,
            notes=(*facts.notes, *self._hazards()),
            provision_s=max(self._ready_s.values()) - self._started_s if is_ready else None,
        )

    def _hazards(self) -> Sequence[str]:
        crowded = [worker for worker, n in sorted(self._n_threads.items()) if n > 1]
        if not crowded:
            return ()
        hazard = (
            "worker processes are forked from one that has threads, on worker "
            f"{', '.join(map(str, crowded))}: a lock that one of them holds stays locked in the fork, which "
            "may hang"
        )
        return (hazard,)

    def worker_path(self, path: Path) -> Path:
        return self._files.worker_path(path)

    def wait_ready(self, n_workers: int) -> Sequence[WorkerFacts]:
        """Wait until the first `n_workers` can fork; dead workers and failed hosts are replaced.

        Raises:
            ProvisionError: Ray itself has ended, or a host cannot be replaced.
        """
        preload_s = self._options.preload_s
        self._renew(n_workers)
        replies = self._ask(range(n_workers), lambda actor, _: actor.facts.remote(), preload_s)
        lost = [worker for worker, reply in enumerate(replies) if not isinstance(reply, WorkerFacts)]
        if lost:
            self._files.download(n_workers)
            self._renew(n_workers, lost)
            replies = self._ask(range(n_workers), lambda actor, _: actor.facts.remote(), preload_s)
        facts = [self._up(worker, reply) for worker, reply in enumerate(replies)]
        self._n_threads.update(
            {worker: worker_facts.n_fork_server_threads for worker, worker_facts in enumerate(facts)}
        )
        ports = {worker: worker_facts.probe_port for worker, worker_facts in enumerate(facts)}
        self._probe_ports.update({worker: port for worker, port in ports.items() if port is not None})
        # A worker may have been ready long before this first call.
        answered_s = time.monotonic()
        for worker, worker_facts in enumerate(facts):
            self._ready_s.setdefault(worker, answered_s - worker_facts.ready_for_s)
        return facts

    def limit_links(self, limits: Limits) -> None:
        self._links = tuple(limits)

    @contextlib.contextmanager
    def open_session(self, workers: Sequence[int], log_paths: Sequence[Path]) -> Iterator[RayProcessSet]:
        if (
            not workers
            or len(log_paths) != len(workers)
            or [k for k in self._actors if k in workers] != [*workers]
        ):
            raise ValueError(f"workers {[*workers]} of {len(self._setups)} with {len(log_paths)} logs")
        n_workers = workers[-1] + 1
        self.wait_ready(n_workers)
        self._hosts.limit_links(self._links[:n_workers])
        for path in log_paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._hosts.allow_writing(path.parent)
        with ExitStack() as stack:
            pids: dict[int, int] = {}
            self._files.upload(n_workers, [path.parent for path in log_paths])
            stack.callback(self._files.download, n_workers)
            stack.callback(kill_processes, self._actors, pids, self._hosts)
            logs = {w: str(self._files.worker_path(path)) for w, path in zip(workers, log_paths, strict=True)}
            asked_s = time.monotonic()
            # A worker that forks waits for its fork server first.
            limit_s = self._options.preload_s + self._options.fork_s
            replies = self._ask(workers, lambda actor, worker: actor.fork.remote(logs[worker]), limit_s)
            pids.update(
                {w: reply for w, reply in zip(workers, replies, strict=True) if isinstance(reply, int)}
            )
            for rank, reply in enumerate(replies):
                if not isinstance(reply, int):
                    waited_s = time.monotonic() - asked_s
                    awaited = Awaited(worker=rank, what="a fork", waited_s=waited_s, log=None, stage="run")
                    raise failure_of(reply, awaited)
            actors = {worker: self._actors[worker] for worker in workers}
            yield RayProcessSet(actors, pids, log_paths, self._hosts, self._probes(workers), self._files)

    def stop(self) -> None:
        for actor in self._actors.values():
            with contextlib.suppress(RayError, ConnectionError):
                ray.kill(actor, no_restart=True)

    def _renew(self, n_workers: int, lost: Iterable[int] = ()) -> None:
        """Replace hosts that have failed, and the actors of these and of lost workers."""
        asked_s = time.monotonic()
        for worker in {*lost, *self._hosts.replace_failed(n_workers)}:
            with contextlib.suppress(RayError, ConnectionError):
                ray.kill(self._actors[worker], no_restart=True)
            self._asked_s[worker] = asked_s
            self._actors[worker] = start_actor(self._setups[worker], self._options, self._hosts, worker)

    def _probes(self, workers: Sequence[int]) -> dict[int, ProbeAddress]:
        addresses, ports = self._hosts.addresses, self._probe_ports
        return {worker: (addresses[worker], ports[worker]) for worker in workers if worker in ports}

    def _up(self, worker: int, reply: object) -> WorkerFacts:
        if isinstance(reply, WorkerFacts):
            return reply
        self._files.download(len(self._actors))
        setup = self._setups[worker]
        # A failed host was to write the worker's own log, which is thus missing.
        log = setup.host_log or setup.log if isinstance(reply, Died) and not setup.log.exists() else setup.log
        waited_s = time.monotonic() - self._asked_s[worker]
        raise failure_of(
            reply, Awaited(worker=worker, what="its start", waited_s=waited_s, log=log, stage="provision")
        )

    def _ask(
        self, workers: Sequence[int], ask: Callable[[ActorHandle, int], ray.ObjectRef], timeout_s: float
    ) -> list[object]:
        pending = {ask(self._actors[worker], worker): worker for worker in workers}
        replies: dict[int, object] = {}
        limit_s = time.monotonic() + timeout_s + ANSWER_MARGIN_S
        while pending and time.monotonic() < limit_s and self._hosts.is_up():
            for reference in ready(list(pending), len(pending), CHECK_S, self._hosts):
                replies[pending.pop(reference)] = fetch(reference, self._hosts)
            failed = failures_of_hosts(self._hosts, pending.values())
            replies.update(failed)
            pending = {reference: worker for reference, worker in pending.items() if worker not in failed}
        return [replies.get(worker, Silent(waited_s=timeout_s)) for worker in workers]
