"""What messages say of the starts of workers; tests of real ones are in integration/."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.provision.failures import WorkerDied
from harness.provision.ray import pool
from harness.provision.ray.actors import Preload, Seat
from harness.provision.ray.pool import RayCluster, Traits
from harness.worker.process.actor import WorkerFacts
from harness.worker.process.messages import Died

CLUSTER_AGE_S, ANSWER_S = 439.0, 3.0


class _Hosts:
    """Hosts that are well."""

    def options(self, worker: int) -> Mapping[str, object]:
        del worker
        return {}

    def renew(self, n_workers: int) -> Sequence[int]:
        del n_workers
        return ()


def cluster_of(n_workers: int) -> RayCluster:
    return RayCluster(
        [
            Seat(resources={}, cores=None, environment={}, log=Path(f"zygote-{worker}.log"))
            for worker in range(n_workers)
        ],
        hosts=cast("Any", _Hosts()),
        traits=Traits(scratch=Path("scratch"), pinned=False, isolated=False, notes=("of the hosts",)),
        started_s=0.0,
        preload=Preload(imports=(), wait_s=60.0),
    )


def test_a_replaced_workers_start_counts_from_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = CLUSTER_AGE_S

    def ask(*_: object) -> list[object]:
        nonlocal now_s
        now_s += ANSWER_S
        return [Died(what="zygote", exit_code=1)]

    monkeypatch.setattr(pool, "start_actor", lambda *_: object())
    monkeypatch.setattr(pool, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(pool.ray, "kill", lambda *_, **__: None)
    monkeypatch.setattr(RayCluster, "_ask", ask)
    cluster = cluster_of(1)
    with pytest.raises(WorkerDied, match=rf" {ANSWER_S} s into its start"):
        cluster.wait_ready(1)


def test_forking_from_a_process_with_threads_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    n_threads = [1, 2]
    monkeypatch.setattr(pool, "start_actor", lambda *_: object())
    monkeypatch.setattr(
        RayCluster,
        "_ask",
        lambda *_: [
            WorkerFacts(pid=1, zygote_pid=2, import_s=0.0, n_zygote_threads=n, cores=None) for n in n_threads
        ],
    )
    cluster = cluster_of(2)
    assert cluster.notes == ("of the hosts",)
    cluster.wait_ready(2)
    assert cluster.notes[0] == "of the hosts"
    assert "on worker 1: a lock" in cluster.notes[1]
    n_threads[1] = 1
    whole = cluster_of(2)
    whole.wait_ready(2)
    assert whole.notes == ("of the hosts",)
