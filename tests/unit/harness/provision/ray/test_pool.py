"""Messages on the starts of workers; tests of real ones are in integration/."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.provision.failures import WorkerFailure
from harness.provision.hosts import Hosts, WorkerSetup
from harness.provision.protocols import LOOPBACK, ClusterFacts, StartOptions
from harness.provision.ray import actors, pool
from harness.provision.ray.pool import RayCluster
from harness.worker.process.actor import WorkerFacts
from harness.worker.process.messages import Died

CLUSTER_AGE_S, ANSWER_S = 439.0, 3.0


class _Hosts:
    """Hosts that are well."""

    core_set: tuple[int, ...] | None = None

    def cores(self, worker: int) -> tuple[int, ...] | None:
        del worker
        return self.core_set

    def options(self, worker: int) -> Mapping[str, object]:
        del worker
        return {}

    def replace_failed(self, n_workers: int) -> Sequence[int]:
        del n_workers
        return ()

    def limit_links(self, limits: object) -> None:
        del limits

    def allow_writing(self, folder: Path) -> None:
        del folder

    @property
    def addresses(self) -> Sequence[str]:
        return [LOOPBACK]


def cluster_of(n_workers: int, hosts: _Hosts | None = None) -> RayCluster:
    return RayCluster(
        [
            WorkerSetup(resources={}, environment={}, log=Path(f"fork-server-{worker}.log"))
            for worker in range(n_workers)
        ],
        hosts=cast("Any", hosts or _Hosts()),
        scratch=Path("scratch"),
        facts=lambda: ClusterFacts(notes=("of the hosts",)),
        started_s=0.0,
        options=StartOptions(imports=(), preload_s=60.0, fork_s=7.0),
    )


def test_a_replaced_workers_start_counts_from_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = CLUSTER_AGE_S

    def ask(*_: object) -> list[object]:
        nonlocal now_s
        now_s += ANSWER_S
        return [Died(what="fork server", exit_code=1)]

    monkeypatch.setattr(pool, "start_actor", lambda *_: object())
    monkeypatch.setattr(pool, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(pool.ray, "kill", lambda *_, **__: None)
    monkeypatch.setattr(RayCluster, "_ask", ask)
    cluster = cluster_of(1)
    with pytest.raises(WorkerFailure, match=rf" {ANSWER_S} s into its start"):
        cluster.wait_ready(1)


def test_a_fork_is_waited_for_as_long_as_the_worker_itself_waits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limits_s: list[float] = []

    def ask(_: RayCluster, workers: Sequence[int], __: object, timeout_s: float) -> list[object]:
        limits_s.append(timeout_s)
        facts = WorkerFacts(
            pid=1, fork_server_pid=2, import_s=0.0, n_fork_server_threads=1, cores=None, ready_for_s=0.0
        )
        return [facts if len(limits_s) == 1 else 7 for _ in workers]

    monkeypatch.setattr(pool, "start_actor", lambda *_: object())
    monkeypatch.setattr(pool, "kill_processes", lambda *_: None)
    monkeypatch.setattr(RayCluster, "_ask", ask)
    with cluster_of(1).open_session([0], [tmp_path / "worker.log"]):
        pass
    assert limits_s == [60.0, 67.0]


def test_what_is_done_before_a_workers_first_use_is_no_part_of_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ready_s, now_s = [9.0, 12.0], 0.0

    def ask(_: RayCluster, workers: Sequence[int], *__: object) -> list[WorkerFacts]:
        return [
            WorkerFacts(
                pid=1,
                fork_server_pid=2,
                import_s=0.0,
                n_fork_server_threads=1,
                cores=None,
                ready_for_s=now_s - ready_s[worker],
            )
            for worker in workers
        ]

    monkeypatch.setattr(pool, "start_actor", lambda *_: object())
    monkeypatch.setattr(pool, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(RayCluster, "_ask", ask)
    cluster = cluster_of(2)
    now_s = 10.0
    cluster.wait_ready(1)
    assert cluster.facts().provision_s is None
    now_s = 300.0  # captures and references have been made on the first worker
    cluster.wait_ready(2)
    assert cluster.facts().provision_s == 12.0
    ready_s[1] = 400.0  # another in the place of a lost one
    now_s = 410.0
    cluster.wait_ready(2)
    assert cluster.facts().provision_s == 12.0


def test_a_worker_in_place_of_a_lost_one_is_pinned_to_cores_of_its_own_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pinned: list[object] = []

    def start(**arguments: object) -> object:
        pinned.append(arguments["cores"])
        return object()

    actor = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=start))
    monkeypatch.setattr(actors.ray, "remote", lambda _: actor)
    monkeypatch.setattr(pool.ray, "kill", lambda *_, **__: None)
    hosts = _Hosts()
    hosts.core_set = (0, 1)
    cluster = cluster_of(1, hosts)
    hosts.core_set = (6, 7)
    cluster._renew(1, [0])
    assert pinned == [(0, 1), (6, 7)]


def test_forking_from_a_process_with_threads_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    n_threads = [1, 2]
    monkeypatch.setattr(pool, "start_actor", lambda *_: object())
    monkeypatch.setattr(
        RayCluster,
        "_ask",
        lambda *_: [
            WorkerFacts(
                pid=1, fork_server_pid=2, import_s=0.0, n_fork_server_threads=n, cores=None, ready_for_s=0.0
            )
            for n in n_threads
        ],
    )
    cluster = cluster_of(2)
    assert cluster.facts().notes == ("of the hosts",)
    cluster.wait_ready(2)
    assert cluster.facts().notes[0] == "of the hosts"
    assert "on worker 1: a lock" in cluster.facts().notes[1]
    n_threads[1] = 1
    whole = cluster_of(2)
    whole.wait_ready(2)
    assert whole.facts().notes == ("of the hosts",)


class _EndedHosts:
    """Hosts of one worker, which has ended; what it said was kept."""

    addresses = (LOOPBACK,)

    def is_up(self) -> bool:
        return True

    def options(self, worker: int) -> Mapping[str, object]:
        del worker
        return {}

    def failure(self, worker: int, *, stopped_s: float) -> Died:
        del worker, stopped_s
        return Died(what="container", exit_code=1)

    def replace_failed(self, n_workers: int) -> list[int]:
        del n_workers
        return []


@pytest.mark.parametrize(
    ("has_own", "message"), [(False, "see ray/worker-0/output.log,"), (True, "see fork-server-0.log,")]
)
def test_a_container_that_ends_early_is_told_of_with_its_own_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_own: bool, message: str
) -> None:
    class Actor:
        class facts:  # noqa: N801 - as the handle names it
            remote = staticmethod(object)

    monkeypatch.setattr(pool, "start_actor", lambda *_: Actor())
    monkeypatch.setattr(pool, "ready", lambda *_: [])
    monkeypatch.setattr(pool.ray, "kill", lambda *_, **__: None)
    log = tmp_path / "ray" / "worker-0" / "output.log"
    log.parent.mkdir(parents=True)
    log.write_text("no room for shared memory\n")
    own = tmp_path / "fork-server-0.log"
    if has_own:
        own.write_text("imported\n")
    setup = WorkerSetup(resources={}, environment={}, log=own, host_log=log)
    cluster = RayCluster(
        [setup],
        hosts=cast("Hosts", _EndedHosts()),
        scratch=tmp_path,
        facts=ClusterFacts,
        started_s=time.monotonic(),
        options=StartOptions(imports=(), preload_s=1.0),
    )
    with pytest.raises(WorkerFailure, match=message) as raised:
        cluster.wait_ready(1)
    last = "imported" if has_own else "no room for shared memory"
    assert last in "\n".join(raised.value.__notes__)
