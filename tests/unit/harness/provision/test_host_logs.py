"""Where a failure sends its reader when a worker's host ended before the worker was there."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from harness.provision.failures import WorkerDied
from harness.provision.protocols import LOOPBACK
from harness.provision.ray.hosts import Hosts
from harness.worker.process.messages import Died


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

    def renew(self, n_workers: int) -> list[int]:
        del n_workers
        return []


@pytest.mark.parametrize(
    ("has_own", "told"), [(False, "see ray/worker-0/output.log,"), (True, "see zygote-0.log,")]
)
def test_a_container_that_ends_early_is_told_of_with_its_own_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_own: bool, told: str
) -> None:
    from harness.provision.ray import pool
    from harness.provision.ray.actors import Preload, Seat
    from harness.provision.ray.pool import RayCluster, Traits
    from harness.provision.start_limits import StartLimits

    class Actor:
        class facts:  # noqa: N801 - as the handle names it
            remote = staticmethod(object)

    monkeypatch.setattr(pool, "start_actor", lambda *_: Actor())
    monkeypatch.setattr(pool, "ready", lambda *_: [])
    monkeypatch.setattr(pool.ray, "kill", lambda *_, **__: None)
    kept = tmp_path / "ray" / "worker-0" / "output.log"
    kept.parent.mkdir(parents=True)
    kept.write_text("no room for shared memory\n")
    own = tmp_path / "zygote-0.log"
    if has_own:
        own.write_text("imported\n")
    seat = Seat(resources={}, environment={}, log=own, host_log=kept)
    cluster = RayCluster(
        [seat],
        hosts=cast("Hosts", _EndedHosts()),
        traits=Traits(
            scratch=tmp_path,
            pinned=True,
            isolated=True,
        ),
        started_s=time.monotonic(),
        preload=Preload(imports=(), limits=StartLimits(preload_s=1.0)),
    )
    with pytest.raises(WorkerDied, match=told) as raised:
        cluster.wait_ready(1)
    last = "imported" if has_own else "no room for shared memory"
    assert last in "\n".join(raised.value.__notes__)
