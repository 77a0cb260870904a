"""Workers in containers that come and go, and what is left of them."""

import os
import threading
from pathlib import Path

import docker

from harness.cluster import ClusterShape
from harness.provision.docker import provider as docker_provider
from harness.provision.docker.leftovers import RUN_LABEL
from harness.provision.protocols import StartOptions

OPTIONS = StartOptions(imports=("json",))


def assert_nothing_is_left_of_cycles(n_cycles: int, logs: Path, n_workers: int = 2) -> None:
    """Start and stop workers that often, three times at least: the first time loads what stays loaded."""
    seen = []
    for cycle in range(n_cycles):
        run = f"cycle-{os.getpid()}-{cycle}"
        with docker_provider.start(ClusterShape(workers=n_workers), run, logs, OPTIONS) as cluster:
            cluster.wait_ready(n_workers)
            folder = cluster.scratch.parent
        assert not folder.exists()
        assert _left_with_the_engine(run) == []
        n_descriptors = sum(1 for _ in Path("/proc/self/fd").iterdir())
        seen.append((n_descriptors, threading.active_count(), _children()))
    assert len(seen) > 2
    assert len(set(seen[1:])) == 1, seen


def _left_with_the_engine(run: str) -> list[str]:
    filters: dict[str, str | list[str] | bool] = {"label": f"{RUN_LABEL}={run}"}
    client = docker.from_env()
    try:
        containers = client.containers.list(all=True, filters=filters, ignore_removed=True)
        networks = client.networks.list(filters=filters)
        return [
            *(str(container.name) for container in containers),
            *(str(network.name) for network in networks),
        ]
    finally:
        client.close()


def _children() -> int:
    """Processes that this one has started and that are there still, dead ones included."""
    own = str(os.getpid())
    result = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            result += stat.read_text().rpartition(")")[2].split()[1] == own
        except OSError:
            continue
    return result
