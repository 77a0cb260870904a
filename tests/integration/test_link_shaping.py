"""Limits of links between containers: both directions, the slower of two, and none again."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import docker
import pytest

from harness.cluster import ClusterShape, Limits, ShapeLink, WorkerLink
from harness.errors import CaseError
from harness.measure.link import MOST_OFF, measured_links
from harness.provision.docker import provider as docker_provider
from harness.provision.docker.leftovers import RUN_LABEL
from harness.provision.protocols import Cluster, ProcessSet, StartOptions
from harness.worker.jobs import link_rate

pytestmark = [pytest.mark.docker, pytest.mark.ray]

RUN = f"test-links-{os.getpid()}"


@pytest.fixture(scope="module")
def client() -> Iterator[docker.DockerClient]:
    client = docker.from_env()
    yield client
    client.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    place = tmp_path_factory.mktemp("run")
    options = StartOptions(imports=("json",))
    shape = ClusterShape(workers=2, memory_bytes=1 << 30)
    with docker_provider.start(shape, RUN, place / "logs", options) as started:
        yield started


@contextmanager
def session(cluster: Cluster, limits: Limits) -> Iterator[ProcessSet]:
    cluster.limit_links(limits)
    logs = [cluster.scratch / "logs" / f"worker-{worker}.log" for worker in range(2)]
    with cluster.open_session(range(2), logs) as processes:
        yield processes


def limits(first: float | None, second: float | None) -> Limits:
    return ShapeLink(rate_mbit=first, workers=((1, WorkerLink(rate_mbit=second)),)).limits(2)


def carried_mbit(processes: ProcessSet) -> tuple[float, float]:
    """Rates of the links from the first worker to the second, and back."""
    hosts = [(host,) for host in processes.hosts]
    first, second = processes.call(link_rate.await_sender, hosts, timeout_s=120)
    window = (200_000, 0.3)
    _, there = processes.call(link_rate.transfer, [(second, None), (None, window)], timeout_s=120)
    back, _ = processes.call(link_rate.transfer, [(None, window), (first, None)], timeout_s=120)
    assert isinstance(there, float)
    assert isinstance(back, float)
    return there, back


def test_links_carry_what_was_asked_in_both_directions(cluster: Cluster, client: docker.DockerClient) -> None:
    limits_mbit = limits(100.0, 100.0)
    with session(cluster, limits_mbit) as processes:
        links = measured_links(processes, limits_mbit)
    assert links is not None
    for link in links:
        assert link.requested_mbit == 100.0
        assert link.sent_mbit == pytest.approx(100.0, rel=MOST_OFF)
        assert link.received_mbit == pytest.approx(100.0, rel=MOST_OFF)
    filters: dict[str, str | list[str] | bool] = {"label": f"{RUN_LABEL}={RUN}"}
    left = {
        str(container.name)
        for container in client.containers.list(all=True, filters=filters, ignore_removed=True)
    }
    assert left == {f"stratbench-{RUN}-{role}" for role in ("head", "worker-0", "worker-1")}


def assert_the_second_is_limited(cluster: Cluster, mbit: float) -> None:
    """In both directions, by a measurement that does without a machine's bad moments."""
    limits_mbit = limits(None, mbit)
    with session(cluster, limits_mbit) as processes:
        links = measured_links(processes, limits_mbit)
    assert links is not None
    for link in links:
        assert (link.sent_mbit, link.received_mbit) == pytest.approx((mbit, mbit), rel=MOST_OFF)


def test_the_limit_of_one_worker_holds_for_what_it_sends_and_for_what_it_receives(cluster: Cluster) -> None:
    assert_the_second_is_limited(cluster, 20.0)


def test_a_link_that_is_not_as_it_should_be_fails_the_case(cluster: Cluster) -> None:
    with session(cluster, limits(50.0, 50.0)) as processes, pytest.raises(CaseError) as caught:
        measured_links(processes, limits(100.0, 100.0))
    assert caught.value.kind == "link-off-rate"
    assert "must carry 100 Mbit/s" in str(caught.value)


def test_a_container_in_place_of_a_dead_one_has_the_limit_of_its_worker(
    cluster: Cluster, client: docker.DockerClient
) -> None:
    client.containers.get(f"stratbench-{RUN}-worker-1").kill()
    assert_the_second_is_limited(cluster, 20.0)


def test_a_link_without_a_limit_is_free_again(cluster: Cluster) -> None:
    with session(cluster, limits(20.0, 20.0)) as processes:
        limited = carried_mbit(processes)
    with session(cluster, limits(None, None)) as processes:
        assert min(carried_mbit(processes)) > 2 * max(limited)
