"""Makes the provider of a name; what it needs is imported then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.provision.protocols import Provider


def _local(exposure: str | None) -> Provider:
    from harness.provision.local.provider import LocalProvider

    return LocalProvider(exposure=exposure)


def _docker(exposure: str | None) -> Provider:
    from harness.provision.docker.provider import DockerProvider

    del exposure  # its containers have networks of their own
    return DockerProvider()


def _cluster(exposure: str | None) -> Provider:
    from harness.provision.cluster.provider import ClusterProvider

    del exposure  # its workers are on a network of others
    return ClusterProvider()


MAKERS: Mapping[str, Callable[[str | None], Provider]] = {
    "local": _local,
    "docker": _docker,
    "cluster": _cluster,
}
"""What makes each provider of `harness.cluster.providers.PROVIDERS`.

It takes why strangers on the network can reach what this process starts, None if they cannot.
"""
