"""What a failure of workers is put down to; tests of real ones are in integration/."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.provision import ray_processes
from harness.provision.base import LOOPBACK
from harness.provision.failures import WorkerDied
from harness.provision.files import SharedFiles
from harness.provision.ray_processes import RayProcessSet
from harness.worker.replies import Died


class _Hosts:
    """A host of one worker, whose Ray is up for so many looks."""

    addresses = (LOOPBACK,)

    def __init__(self, n_looks: int) -> None:
        self._n_looks = n_looks

    def is_up(self) -> bool:
        self._n_looks -= 1
        return self._n_looks >= 0

    def failure(self, worker: int) -> None:
        del worker


@pytest.mark.parametrize(("n_looks", "what"), [(0, "Ray node"), (1, "Ray node"), (1000, "actor")])
def test_an_actor_that_ends_with_ray_is_not_taken_for_the_cause(
    monkeypatch: pytest.MonkeyPatch, n_looks: int, what: str
) -> None:
    monkeypatch.setattr(ray_processes, "ready", lambda references, *_: references)
    monkeypatch.setattr(ray_processes, "fetch", lambda *_: Died(what="actor", exit_code=None))
    monkeypatch.setattr(ray_processes, "kill_processes", lambda *_: None)
    actor = SimpleNamespace(call=SimpleNamespace(remote=lambda *_: object()))
    hosts = cast("Any", _Hosts(n_looks))
    processes = RayProcessSet([cast("Any", actor)], {0: 7}, [Path("log")], hosts, (), SharedFiles())
    with pytest.raises(WorkerDied, match=f"worker 0: its {what} ended"):
        processes.call("jobs:wait", [()], timeout_s=60)
