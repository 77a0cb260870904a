"""Containers, networks and link limits of one run."""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import docker
from docker.errors import APIError, NotFound
from docker.models.containers import Container
from docker.models.networks import Network

from harness.cluster import Limits, LinkLimit
from harness.provision.docker import tc_helper
from harness.provision.docker.container_settings import ContainerLimits, RunPlace, create_arguments
from harness.provision.docker.engine import GONE, refused
from harness.provision.docker.leftovers import labels_of
from harness.provision.failures import ProvisionError

GCS_PORT = 6379
CLIENT_PORT = 10001
_OBJECT_STORE_BYTES = 100 * 2**20
_ADDRESS_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Networks:
    """The two networks of a run: Ray's, and that of the strategies' data."""

    control: Network
    data: Network


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerNode:
    """A running container with a Ray node in it.

    Attributes:
        data_address: address for other workers; None for the head, which they do not need.
    """

    role: str
    container: Container
    control_address: str
    data_address: str | None


@contextmanager
def networks(client: docker.DockerClient, place: RunPlace) -> Iterator[Networks]:
    """Create a run's networks; they are removed when the context ends, and must then be empty.

    Raises:
        ProvisionError: the engine cannot create them.
    """
    created: list[Network] = []
    try:
        for role, internal in (("control", False), ("data", True)):
            try:
                created.append(
                    client.networks.create(
                        place.name(role),
                        driver="bridge",
                        internal=internal,
                        check_duplicate=True,
                        labels=labels_of(place.run_id, role),
                    )
                )
            except APIError as error:
                raise refused(error, f"making the network {place.name(role)}") from error
        yield Networks(control=created[0], data=created[1])
    finally:
        for network in created:
            with suppress(*GONE):
                network.remove()


def start_head(client: docker.DockerClient, place: RunPlace, between: Networks) -> ContainerNode:
    """Start Ray's head, which runs no jobs and can be reached on the control network only.

    Raises:
        ProvisionError: the engine cannot start it.
    """
    command = ["--head", f"--port={GCS_PORT}", f"--ray-client-server-port={CLIENT_PORT}", "--num-cpus=0"]
    command += ["--include-dashboard=false"]
    return _start(client, place, "head", command, ContainerLimits(), [between.control], folders={})


def start_worker(
    client: docker.DockerClient,
    place: RunPlace,
    between: Networks,
    worker: int,
    head: ContainerNode,
    limits: ContainerLimits,
    resource: str,
) -> ContainerNode:
    """Start the container of one worker, a node of the head's cluster.

    Args:
        resource: name of a custom Ray resource that only this worker's node has.

    Raises:
        ProvisionError: the engine cannot start it.
    """
    command = [f"--address={head.control_address}:{GCS_PORT}", "--num-cpus=1"]
    command += [f'--resources={{"{resource}": 1}}']
    folders = dict.fromkeys(place.reads, "ro") | dict.fromkeys(place.writes, "rw")
    both = [between.control, between.data]
    return _start(client, place, f"worker-{worker}", command, limits, both, folders=folders)


def remove(container: Container) -> None:
    """End a container, whatever state it is in, and remove it."""
    with suppress(*GONE):
        container.remove(force=True, v=True)


def last_lines(container: Container, n_lines: int = 60) -> Sequence[str]:
    """Last lines of a container's output; empty if it cannot be read."""
    try:
        text: bytes = container.logs(tail=n_lines)
    except GONE:
        return ()
    return text.decode(errors="replace").splitlines()


def _start(
    client: docker.DockerClient,
    place: RunPlace,
    role: str,
    ray_arguments: Sequence[str],
    limits: ContainerLimits,
    between: Sequence[Network],
    *,
    folders: Mapping[Path, str],
) -> ContainerNode:
    container = _created(client, place, role, ray_arguments, limits, between[0], folders)
    try:
        for network in between[1:]:
            network.connect(container)
        container.start()
        addresses = [_address(container, network) for network in between]
    except APIError as error:
        remove(container)
        raise refused(error, f"starting the container {place.name(role)}") from error
    except BaseException:
        remove(container)
        raise
    data_address = addresses[1] if len(addresses) > 1 else None
    return ContainerNode(
        role=role, container=container, control_address=addresses[0], data_address=data_address
    )


def _created(
    client: docker.DockerClient,
    place: RunPlace,
    role: str,
    ray_arguments: Sequence[str],
    limits: ContainerLimits,
    network: Network,
    folders: Mapping[Path, str],
) -> Container:
    # Files made in shared folders stay accessible to their group.
    ray = 'umask 002; exec ray start --block --disable-usage-stats --object-store-memory=%d "$@"'
    arguments = create_arguments(place, role, limits, network, folders)
    try:
        return client.containers.create(
            place.image, ["sh", "-c", ray % _OBJECT_STORE_BYTES, "ray", *ray_arguments], **arguments
        )
    except APIError as error:
        raise refused(error, f"making the container {place.name(role)}") from error


def _address(container: Container, network: Network) -> str:
    limit_s = time.monotonic() + _ADDRESS_S
    while True:
        container.reload()
        known = container.attrs["NetworkSettings"]["Networks"].values()
        address = next(
            (endpoint["IPAddress"] for endpoint in known if endpoint["NetworkID"] == network.id), ""
        )
        if address:
            return str(address)
        if container.status not in ("created", "running") or time.monotonic() > limit_s:
            raise _no_address(container, network)
        time.sleep(0.02)


def _no_address(container: Container, network: Network) -> ProvisionError:
    error = ProvisionError(
        f"docker: the container {container.name} has no address in {network.name} after "
        f"{_ADDRESS_S:g} s (status {container.status}); --debug shows the end of its log"
    )
    lines = last_lines(container)
    if lines:
        error.add_note("last lines of its log:\n" + "\n".join(lines))
    return error


_SHAPE_S = 60.0


Limited: TypeAlias = Mapping[str, LinkLimit]
"""Ids of containers with limited links → limit."""


def limit_links(
    client: docker.DockerClient,
    place: RunPlace,
    workers: Mapping[int, ContainerNode],
    limits: Limits,
    limited: Limited,
) -> Limited:
    """Set the links' limits of the first workers, all at the same time, and remove limits no longer wanted.

    Args:
        limited: known current limits.
    Returns:
        Limits afterwards, of containers that still exist.
    Raises:
        ProvisionError: this host cannot limit links; a link that failed is free in both directions.
    """
    wanted = {str(node.container.id): limited.get(str(node.container.id)) for node in workers.values()}
    changes = {
        worker: limit
        for worker, limit in enumerate(limits)
        if wanted[str(workers[worker].container.id)] != limit
    }
    if changes:
        with ThreadPoolExecutor(len(changes)) as pool:
            done = [
                pool.submit(_limit, client, place, worker, workers[worker], limit)
                for worker, limit in changes.items()
            ]
        for future in done:
            future.result()
    wanted |= {str(workers[worker].container.id): limit for worker, limit in changes.items()}
    return {container: limit for container, limit in wanted.items() if limit is not None}


def _limit(
    client: docker.DockerClient, place: RunPlace, worker: int, node: ContainerNode, limit: LinkLimit | None
) -> None:
    name = place.name(f"link-{worker}")
    command = ["python", "-m", tc_helper.__name__, node.data_address or ""]
    if limit is not None:
        command += [repr(limit.rate_mbit), str(limit.burst_bytes)]
    try:
        helper = client.containers.create(
            place.image,
            command,
            name=name,
            labels=labels_of(place.run_id, f"link-{worker}"),
            network_mode=f"container:{node.container.id}",
            user="0:0",
            cap_drop=["ALL"],
            cap_add=["NET_ADMIN"],
            security_opt=["no-new-privileges:true"],
            read_only=True,
            healthcheck={"test": ["NONE"]},
            detach=True,
        )
    except APIError as error:
        raise refused(error, f"making the container {name}") from error
    try:
        helper.start()
        status = int(helper.wait(timeout=_SHAPE_S)["StatusCode"])
        if status:
            raise _failure(status, worker, helper)
    except APIError as error:
        # A worker that has just ended has no namespace to join; its session reports its failure.
        if _is_running(node.container):
            raise refused(error, f"starting the container {name}") from error
    except GONE as error:
        raise ProvisionError(
            f"docker: the container {name} did not limit its link within {_SHAPE_S:g} s; repeat with --resume"
        ) from error
    finally:
        remove(helper)


def _is_running(container: Container) -> bool:
    try:
        container.reload()
    except NotFound:
        return False
    return container.status == "running"


def _failure(status: int, worker: int, helper: Container) -> ProvisionError:
    reason = " ".join(last_lines(helper, 1))[:300] or f"exit status {status}"
    if status == tc_helper.NO_IFB:
        return ProvisionError(
            f"links cannot be limited both ways without the kernel's device ifb: {reason}; load it "
            "(modprobe ifb), or leave links unlimited",
            field="cluster.link.rate_mbit",
        )
    return ProvisionError(
        f"docker: cannot limit the link of worker {worker}: {reason}; check that the kernel has "
        "tbf, cls_u32 and act_mirred, or leave links unlimited",
        field="cluster.link.rate_mbit",
    )
