"""Limits workers' links, from short-lived containers in their network namespaces."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import docker
from docker.errors import APIError, NotFound
from docker.models.containers import Container

from harness.cluster.link_limits import Limits, LinkLimit
from harness.provision.docker import containers, tc_helper
from harness.provision.docker.container_settings import RunPlace
from harness.provision.docker.containers import ContainerNode
from harness.provision.docker.engine import GONE, refused
from harness.provision.docker.leftovers import labels_of
from harness.provision.failures import ProvisionError

_SHAPE_S = 60.0


Limited: TypeAlias = Mapping[str, LinkLimit]
"""Containers by their ids whose links are limited."""


def limit_links(
    client: docker.DockerClient,
    place: RunPlace,
    workers: Mapping[int, ContainerNode],
    limits: Limits,
    limited: Limited,
) -> Limited:
    """Limit the links of the first workers, all at the same time, and free those that have no limit any more.

    Args:
        limited: what is known to be so already.
    Returns:
        The same afterwards, of the containers that are still there.
    Raises:
        ProvisionError: this host cannot; a link that could not be limited is free in both directions.
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
        for each in done:
            each.result()
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
        # A worker that has just ended has no namespace to join; its session says what has become of it.
        if _is_running(node.container):
            raise refused(error, f"starting the container {name}") from error
    except GONE as error:
        raise ProvisionError(
            f"docker: the container {name} must have limited its link within {_SHAPE_S:g} s, got no answer; "
            "repeat with --resume"
        ) from error
    finally:
        containers.remove(helper)


def _is_running(container: Container) -> bool:
    try:
        container.reload()
    except NotFound:
        return False
    return container.status == "running"


def _failure(status: int, worker: int, helper: Container) -> ProvisionError:
    reason = " ".join(containers.last_lines(helper, 1))[:300] or f"exit status {status}"
    if status == tc_helper.NO_IFB:
        return ProvisionError(
            f"this host's kernel must have the device ifb to limit links both ways, got: {reason}; load it "
            "(modprobe ifb), or leave links unlimited",
            field="cluster.link.rate_mbit",
        )
    return ProvisionError(
        f"docker: the link of worker {worker} must take its limit, got: {reason}; see that the kernel has "
        "tbf, cls_u32 and act_mirred, or leave links unlimited",
        field="cluster.link.rate_mbit",
    )
