"""Causes given for a failure of workers; tests of real ones are in integration/."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.errors import CaseError
from harness.provision.failures import WorkerFailure
from harness.provision.hosts import SharedFiles
from harness.provision.protocols import LOOPBACK
from harness.provision.ray import process_set
from harness.provision.ray.process_set import RayProcessSet
from harness.worker.process.forked_process import STOPPED_S
from harness.worker.process.job import JobState
from harness.worker.process.messages import CutOff, Died, JobError, Silent


def wait(state: JobState) -> None:
    raise AssertionError


class _Hosts:
    """Hosts whose Ray is up for so many looks, some of which have just been halted."""

    addresses = (LOOPBACK, LOOPBACK)

    def __init__(self, n_looks: int, halted: frozenset[int] = frozenset()) -> None:
        self._n_looks = n_looks
        self._halted = halted
        self.condemned: set[int] = set()

    def is_up(self) -> bool:
        self._n_looks -= 1
        return self._n_looks >= 0

    def failure(self, worker: int, *, stopped_s: float = STOPPED_S) -> Died | Silent | CutOff | None:
        return Silent(waited_s=1.0, is_stopped=True) if worker in self._halted and stopped_s == 0 else None

    def mark_failed(self, worker: int) -> None:
        self.condemned.add(worker)


@pytest.mark.parametrize(("n_looks", "what"), [(0, "Ray node"), (1, "Ray node"), (1000, "actor")])
def test_an_actor_that_ends_with_ray_is_not_taken_for_the_cause(
    monkeypatch: pytest.MonkeyPatch, n_looks: int, what: str
) -> None:
    monkeypatch.setattr(process_set, "ready", lambda references, *_: references)
    monkeypatch.setattr(process_set, "fetch", lambda *_: Died(what="actor", exit_code=None))
    monkeypatch.setattr(process_set, "kill_processes", lambda *_: None)
    actor = SimpleNamespace(call=SimpleNamespace(remote=lambda *_: object()))
    hosts = cast("Any", _Hosts(n_looks))
    processes = RayProcessSet({0: cast("Any", actor)}, {0: 7}, [Path("log")], hosts, {}, SharedFiles())
    with pytest.raises(WorkerFailure, match=f"worker 0: its {what} ended"):
        processes.call(wait, [()], timeout_s=60)


PEER_FAILED = JobError(type="UnavailableError", message="Socket closed", traceback="")


@pytest.mark.parametrize(
    ("reply", "halted", "kind", "message", "condemned"),
    [
        (PEER_FAILED, {1}, "unresponsive", "worker 1: its process is stopped", set()),
        (PEER_FAILED, set(), "worker-error", "worker 0: wait raised UnavailableError", set()),
        (CutOff(peer=1, waited_s=4.0), {1}, "unresponsive", "worker 1: its process is stopped", set()),
        (CutOff(peer=1, waited_s=4.0), set(), "link-down", "worker 0: it lost worker 1", {0, 1}),
        (Died(what="process", exit_code=-9), {1}, "worker-died", "worker 0: its process was killed", set()),
    ],
)
def test_a_host_that_has_just_been_halted_is_the_cause_of_what_its_peers_say(
    monkeypatch: pytest.MonkeyPatch,
    reply: object,
    halted: set[int],
    kind: str,
    message: str,
    condemned: set[int],
) -> None:
    monkeypatch.setattr(RayProcessSet, "_gather", lambda *_: ({}, {0: reply}))
    monkeypatch.setattr(process_set, "kill_processes", lambda *_: None)
    actor = SimpleNamespace(call=SimpleNamespace(remote=lambda *_: object()))
    hosts = _Hosts(1000, frozenset(halted))
    actors = dict.fromkeys(range(2), cast("Any", actor))
    logs = [Path("log")] * 2
    processes = RayProcessSet(actors, {0: 7, 1: 8}, logs, cast("Any", hosts), {}, SharedFiles())
    with pytest.raises(CaseError, match=message) as caught:
        processes.call(wait, [(), ()], timeout_s=60)
    assert caught.value.kind == kind
    assert hosts.condemned == condemned


def test_who_was_refused_memory_is_the_cause_of_what_its_peers_say(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = {0: PEER_FAILED, 1: JobError.of(MemoryError("Unable to allocate 1.00 PiB"))}
    monkeypatch.setattr(RayProcessSet, "_gather", lambda *_: ({}, failed))
    monkeypatch.setattr(process_set, "kill_processes", lambda *_: None)
    actors = dict.fromkeys(
        range(2), cast("Any", SimpleNamespace(call=SimpleNamespace(remote=lambda *_: object())))
    )
    hosts = cast("Any", _Hosts(1000, frozenset()))
    processes = RayProcessSet(actors, {0: 7, 1: 8}, [Path("log")] * 2, hosts, {}, SharedFiles())
    with pytest.raises(CaseError, match=r"worker 1: wait was refused memory \(Unable") as caught:
        processes.call(wait, [(), ()], timeout_s=60)
    assert caught.value.kind == "out-of-memory"
