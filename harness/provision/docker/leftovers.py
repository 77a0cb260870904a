"""Containers and networks of runs whose driver was killed, and their removal."""

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import docker
from docker.models.containers import Container
from docker.models.networks import Network

from harness.processes import module_command
from harness.provision.docker.engine import GONE
from harness.provision.temporary_folder import Owner
from harness.worker.process.os_process import RUN_FOLDER_VARIABLE

RUN_LABEL = "io.stratbench.run"
OWNER_LABEL = "io.stratbench.owner"
_ROLE_LABEL = "io.stratbench.role"
_REMOVERS = 8


def labels_of(run_id: str, role: str) -> dict[str, str]:
    """Labels by which a container or network is recognised after the end of this process."""
    return {RUN_LABEL: run_id, _ROLE_LABEL: role, OWNER_LABEL: Owner.this_process().to_text()}


@contextmanager
def removed_after_driver(run_id: str) -> Iterator[None]:
    """Start a separate process that removes the run's containers and networks, however this one ends."""
    # Processes with the run's folder in their environment end with the folder; this one must continue.
    environment = {name: value for name, value in os.environ.items() if name != RUN_FOLDER_VARIABLE}
    cleanup = subprocess.Popen(
        module_command("harness.provision.docker.container_cleanup", run_id),
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C in a terminal reaches its whole process group
    )
    try:
        yield
    finally:
        cleanup.communicate()


def remove_run(client: docker.DockerClient, run_id: str) -> Sequence[str]:
    """Remove all containers and networks of a run; return their names."""
    label = f"{RUN_LABEL}={run_id}"
    return _remove(*_labelled(client, label))


def reap(client: docker.DockerClient) -> Sequence[str]:
    """Remove all containers and networks of dead runs; return their names."""
    return _remove(*_dead(client))


def dead_names(client: docker.DockerClient) -> Sequence[str]:
    """Names of the containers and networks of dead runs."""
    return _names(*_dead(client))


def _dead(client: docker.DockerClient) -> tuple[list[Container], list[Network]]:
    containers, networks = _labelled(client, RUN_LABEL)
    return (
        [container for container in containers if _is_dead(container.labels)],
        [network for network in networks if _is_dead(network.attrs.get("Labels") or {})],
    )


def _labelled(client: docker.DockerClient, label: str) -> tuple[list[Container], list[Network]]:
    filters: dict[str, str | list[str] | bool] = {"label": label}
    # Another process may remove one between the listing and the inspection.
    containers = client.containers.list(all=True, filters=filters, ignore_removed=True)
    return containers, client.networks.list(filters=filters)


def _remove(containers: Sequence[Container], networks: Sequence[Network]) -> Sequence[str]:
    def end(container: Container) -> None:
        with suppress(*GONE):
            container.remove(force=True, v=True)

    with ThreadPoolExecutor(_REMOVERS) as pool:
        list(pool.map(end, containers))
    for network in networks:
        with suppress(*GONE):
            network.remove()
    return _names(containers, networks)


def _names(containers: Sequence[Container], networks: Sequence[Network]) -> Sequence[str]:
    return [str(container.name) for container in containers] + [str(network.name) for network in networks]


def _is_dead(labels: Mapping[str, str]) -> bool:
    try:
        return Owner.of_text(labels.get(OWNER_LABEL, "")).is_dead()
    except ValueError:
        return False  # not ours, whatever its other labels are
