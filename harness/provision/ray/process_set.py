"""New processes on Ray actors, and their joint jobs."""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import cast

import ray

from harness.provision.failures import Awaited, failure_of
from harness.provision.hosts import Files, Hosts
from harness.provision.ray.actors import (
    ANSWER_MARGIN_S,
    CHECK_S,
    ActorHandle,
    failures_of_hosts,
    fetch,
    kill_processes,
    ready,
)
from harness.worker.process.job import Args, Job, Result, job_name
from harness.worker.process.messages import CutOff, Died, JobAnswer, JobError, Silent, pack_job, unpack_answer
from harness.worker.process.reachability import ProbeAddress

_GRACE_S = 2.0  # time for a causal error to appear: peers of a dead worker fail at the same time
_PROBE_S = 5.0  # between two probes of connections between workers
_PROBE_WAIT_S = 4.0  # long enough for a busy machine


class RayProcessSet:
    """New processes, one on each of some workers; created by `RayCluster.open_session`.

    Args:
        actors: worker's number in the cluster → actor, in rising order; callers count workers from 0.
        pids: worker → process id. probes: worker → address of its listener, if it has one.
    """

    def __init__(
        self,
        actors: Mapping[int, ActorHandle],
        pids: Mapping[int, int],
        log_paths: Sequence[Path],
        hosts: Hosts,
        probes: Mapping[int, ProbeAddress],
        files: Files,
    ) -> None:
        self._files = files
        self._workers = tuple(actors)
        self._actors = dict(actors)
        self._pids = pids
        self._log_paths = tuple(log_paths)
        self._hosts = hosts
        self._probes = dict(probes)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(self._pids[worker] for worker in self._workers)

    @property
    def hosts(self) -> tuple[str, ...]:
        addresses = self._hosts.addresses
        return tuple(addresses[worker] for worker in self._workers)

    def call(
        self,
        job: Job[*Args, Result],
        per_worker_args: Sequence[tuple[*Args]],
        *,
        timeout_s: float,
        stage: str = "run",
    ) -> list[Result]:
        if len(per_worker_args) != len(self._actors):
            raise ValueError(f"{len(per_worker_args)} argument tuples for {len(self._actors)} processes")
        return self._run(job, dict(zip(self._workers, per_worker_args, strict=True)), timeout_s, stage)

    def call_one(
        self,
        worker: int,
        job: Job[*Args, Result],
        args: tuple[*Args],
        *,
        timeout_s: float,
        stage: str = "run",
    ) -> Result:
        return self._run(job, {self._workers[worker]: args}, timeout_s, stage)[0]

    def _run(
        self, job: Job[*Args, Result], args: dict[int, tuple[*Args]], timeout_s: float, stage: str
    ) -> list[Result]:
        started_s = time.monotonic()
        try:
            pending = {
                self._actors[worker].call.remote(
                    self._pids[worker], pack_job(job, arguments), timeout_s
                ): worker
                for worker, arguments in args.items()
            }
            results, failed = self._gather(pending, timeout_s)
            if failed and not self._hosts.is_up():
                failed = _without_ray(args)  # all other failures follow from this one
        except Exception:  # Ray's client raises only this if its head has gone
            if self._hosts.is_up():
                raise
            results, failed = {}, _without_ray(args)
        if not failed:
            return [cast("Result", results[worker]) for worker in args]
        kill_processes(self._actors, self._pids, self._hosts)
        self._files.download(self._workers[-1] + 1)
        # A stopped host, however briefly, is the cause of its peers' failures and of their probes' failures.
        failed.update(failures_of_hosts(self._hosts, set(self._workers) - failed.keys(), stopped_s=0))
        worker, value = min(failed.items(), key=lambda item: (_rank(item[1]), item[0]))
        if isinstance(value, CutOff) and value.peer is not None:
            # It is unknown which of the two has lost its network.
            self._hosts.mark_failed(worker)
            self._hosts.mark_failed(value.peer)
        rank = self._workers.index(worker)
        awaited = Awaited(
            worker=rank,
            what=job_name(job),
            waited_s=time.monotonic() - started_s,
            log=self._log_paths[rank],
            stage=stage,
        )
        raise failure_of(value, awaited)

    def _gather(
        self, pending: dict[ray.ObjectRef, int], timeout_s: float
    ) -> tuple[dict[int, object], dict[int, object]]:
        """Collect results and failures by worker, only until the first failure with a clear cause."""
        results: dict[int, object] = {}
        failed: dict[int, object] = {}
        limit_s = time.monotonic() + timeout_s + ANSWER_MARGIN_S
        probe_s = time.monotonic() + _PROBE_S
        while pending and time.monotonic() < limit_s:
            if not self._hosts.is_up():
                return results, _without_ray(pending.values())
            if time.monotonic() > probe_s:
                failed.update(self._cut_off())
                probe_s = time.monotonic() + _PROBE_S
            failed.update(failures_of_hosts(self._hosts, pending.values()))
            if any(_is_a_cause(value) for value in failed.values()):
                return results, failed
            left_s = max(0.0, limit_s - time.monotonic())
            for reference in ready(list(pending), 1, min(CHECK_S, left_s), self._hosts):
                worker = pending.pop(reference)
                reply = fetch(reference, self._hosts)
                value = unpack_answer(reply.payload) if isinstance(reply, JobAnswer) else reply
                if isinstance(value, JobError | Died | Silent):
                    failed[worker] = value
                    limit_s = min(limit_s, time.monotonic() + _GRACE_S)
                else:
                    results[worker] = value
        return results, failed or {worker: Silent(waited_s=timeout_s) for worker in pending.values()}

    def _cut_off(self) -> dict[int, CutOff]:
        """Let workers probe each other; return those that another cannot reach."""
        if len(self._probes) < 2:
            return {}
        with_probes = list(self._probes)
        pending = {
            actor.unreachable.remote(tuple(self._probes.values()), _PROBE_WAIT_S): worker
            for worker, actor in self._actors.items()
        }
        cut_off: dict[int, CutOff] = {}
        for reference in ready(list(pending), len(pending), _PROBE_WAIT_S + CHECK_S, self._hosts):
            missed = fetch(reference, self._hosts)
            if isinstance(missed, list) and missed:
                cut_off[pending[reference]] = CutOff(peer=with_probes[missed[0]], waited_s=_PROBE_WAIT_S)
        return cut_off


def _is_a_cause(value: object) -> bool:
    """True for a failure with a clear cause; any other may be a consequence of a peer's failure."""
    return _rank(value) < _CONSEQUENCE


_CONSEQUENCE = 3


def _rank(value: object) -> int:
    """Rank of how well a failure explains those of other workers, best first."""
    match value:
        case Died():
            return 0
        case JobError() if value.kind is not None or value.is_out_of_memory:
            return 0
        case Silent(is_stopped=True):
            return 1
        case CutOff():
            return 2
    return _CONSEQUENCE


def _without_ray(workers: Iterable[int]) -> dict[int, object]:
    return {worker: Died(what="Ray node", exit_code=None) for worker in workers}
