"""What messages say of the starts of workers; tests of real ones are in integration/."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.provision import ray_cluster
from harness.provision.failures import WorkerDied
from harness.provision.ray_actors import Preload, Seat
from harness.provision.ray_cluster import RayCluster
from harness.worker.replies import Died

CLUSTER_AGE_S, ANSWER_S = 439.0, 3.0


class _Hosts:
    """Hosts that are well."""

    def options(self, worker: int) -> Mapping[str, object]:
        del worker
        return {}

    def renew(self, n_workers: int) -> Sequence[int]:
        del n_workers
        return ()


def test_a_replaced_workers_start_counts_from_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = CLUSTER_AGE_S

    def ask(*_: object) -> list[object]:
        nonlocal now_s
        now_s += ANSWER_S
        return [Died(what="zygote", exit_code=1)]

    monkeypatch.setattr(ray_cluster, "start_actor", lambda *_: object())
    monkeypatch.setattr(ray_cluster, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(ray_cluster.ray, "kill", lambda *_, **__: None)
    monkeypatch.setattr(RayCluster, "_ask", ask)
    cluster = RayCluster(
        [Seat(resources={}, cores=None, environment={}, log=Path("zygote-0.log"))],
        hosts=cast("Any", _Hosts()),
        scratch=Path("scratch"),
        pinned=False,
        started_s=0.0,
        preload=Preload(imports=(), wait_s=60.0),
        isolated=False,
    )
    with pytest.raises(WorkerDied, match=rf" {ANSWER_S} s into its start"):
        cluster.wait_ready(1)
