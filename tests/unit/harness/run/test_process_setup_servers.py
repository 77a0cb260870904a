from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_processes import FakeProcesses

from harness.errors import CaseError
from harness.provision.protocols import ProcessSet
from harness.run.process_setup import serving_processes
from harness.worker.jobs.distributed.workload import start_distribution
from harness.worker.jobs.rendezvous import reserve_ports, start_server
from harness.worker.process.actor import WorkerFacts


class FakeCluster:
    """Process sets whose servers find their ports taken the first times."""

    pinned = True
    notes = ()
    provision_s = None

    def __init__(self, failures: Sequence[str]) -> None:
        self.failures = list(failures)
        self.n_opened = 0
        self.n_open = 0
        self.started: list[object] = []

    def wait_ready(self, n_workers: int) -> Sequence[WorkerFacts]:
        raise AssertionError

    @contextmanager
    def open_session(self, workers: Sequence[int], log_paths: Sequence[Path]) -> Iterator[ProcessSet]:
        self.n_opened += 1
        self.n_open += 1
        try:
            yield Workers(self)
        finally:
            self.n_open -= 1


class Workers(FakeProcesses):
    def __init__(self, cluster: FakeCluster) -> None:
        super().__init__(["10.0.0.1", "10.0.0.2"])
        self._cluster = cluster

    def answer(self, job: Any, per_worker_args: Sequence[Any], stage: str) -> list[Any]:
        if job is reserve_ports:
            return [
                [f"{host}:{self._cluster.n_opened}{worker}{'ab'[:port]}" for port in range(n_ports)]
                for worker, (n_ports, host) in enumerate(per_worker_args)
            ]
        if self._cluster.failures:
            raise CaseError(self._cluster.failures.pop(0), "message", stage=stage)
        self._cluster.started = [(job, *args) for args in per_worker_args]
        return [None, None]


LOGS = [Path("a"), Path("b")]


def test_every_worker_learns_all_addresses() -> None:
    cluster = FakeCluster([])
    with serving_processes(cluster, LOGS, n_devices=[1, 2]):
        assert cluster.n_open == 1
    addresses = ["10.0.0.1:10", "10.0.0.2:11"]
    assert cluster.started == [(start_server, 0, addresses, 1), (start_server, 1, addresses, 2)]
    assert cluster.n_open == 0


def test_addresses_of_several_ports_come_port_by_port() -> None:
    cluster = FakeCluster([])
    own_server = partial(start_distribution, plan="plan")
    with serving_processes(cluster, LOGS, n_devices=[1, 1], n_ports=2, server=own_server):
        pass
    addresses = ["10.0.0.1:10", "10.0.0.2:11", "10.0.0.1:10a", "10.0.0.2:11a"]
    assert cluster.started == [(own_server, 0, addresses, 1), (own_server, 1, addresses, 1)]


def test_a_taken_port_starts_over_in_fresh_processes_with_other_ports() -> None:
    cluster = FakeCluster(["port-in-use", "port-in-use"])
    with serving_processes(cluster, LOGS, n_devices=[1, 1]):
        assert (cluster.n_opened, cluster.n_open) == (3, 1)
    assert cluster.started[0] == (start_server, 0, ["10.0.0.1:30", "10.0.0.2:31"], 1)


@pytest.mark.parametrize(
    ("failures", "kind", "n_opened"), [(["port-in-use"] * 3, "port-in-use", 3), (["oom"], "oom", 1)]
)
def test_it_gives_up(failures: list[str], kind: str, n_opened: int) -> None:
    cluster = FakeCluster(failures)
    with pytest.raises(CaseError) as caught, serving_processes(cluster, LOGS, n_devices=[1, 1]):
        pass
    assert caught.value.kind == kind
    assert (cluster.n_opened, cluster.n_open) == (n_opened, 0)
