"""Every provider of workers: its name, what it is, and what it can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.provision import base


@dataclass(frozen=True, kw_only=True, slots=True)
class Provider:
    """One row of the table.

    Args:
        devices: kinds of device that its workers can have.
        shapes_links: whether it can limit the rate between workers.
        open: makes it; what it needs is imported then. It takes why strangers on the network can reach what
            this process starts, or None, which some need to know.
    """

    summary: str
    devices: tuple[str, ...]
    shapes_links: bool
    open: Callable[[str | None], base.Provider]


def _local(exposure: str | None) -> base.Provider:
    from harness.provision.local import LocalProvider

    return LocalProvider(exposure=exposure)


def _docker(exposure: str | None) -> base.Provider:
    from harness.provision.docker_provider import DockerProvider

    del exposure  # its containers have networks of their own
    return DockerProvider()


def _cluster(exposure: str | None) -> base.Provider:
    from harness.provision.cluster_provider import ClusterProvider

    del exposure  # its workers are on a network of others
    return ClusterProvider()


PROVIDERS: Mapping[str, Provider] = {
    "local": Provider(
        summary="Worker processes on this machine under their own Ray instance; memory is not limited",
        devices=("cpu", "gpu", "tpu"),
        shapes_links=False,
        open=_local,
    ),
    "docker": Provider(
        summary="A container for each worker on this host, with cores, memory and a network of its own",
        devices=("cpu", "gpu"),
        shapes_links=True,
        open=_docker,
    ),
    "cluster": Provider(
        summary="Nodes of a Ray cluster that is there already, at cluster.address",
        devices=("cpu", "gpu", "tpu"),
        shapes_links=False,
        open=_cluster,
    ),
}


def describe() -> list[dict[str, object]]:
    """Return the rows of `list providers`."""
    return [{"name": name, "summary": provider.summary, "params": []} for name, provider in PROVIDERS.items()]
