"""Makes the provider of a name; what it needs is imported then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from harness.provision.start_limits import StartLimits

if TYPE_CHECKING:
    from harness.provision.protocols import Provider


def _local(exposure: str | None, limits: StartLimits) -> Provider:
    from harness.provision.local.provider import LocalProvider

    return LocalProvider(exposure=exposure, limits=limits)


def _docker(exposure: str | None, limits: StartLimits) -> Provider:
    from harness.provision.docker.provider import DockerProvider

    del exposure  # its containers have networks of their own
    return DockerProvider(limits=limits)


def _cluster(exposure: str | None, limits: StartLimits) -> Provider:
    from harness.provision.cluster.provider import ClusterProvider

    del exposure  # its workers are on a network of others
    return ClusterProvider(limits=limits)


MAKERS: Mapping[str, Callable[[str | None, StartLimits], Provider]] = {
    "local": _local,
    "docker": _docker,
    "cluster": _cluster,
}
"""What makes each provider of `harness.cluster.providers.PROVIDERS`.

It takes why strangers on the network can reach what this process starts, None if they cannot, and how long
starts may take.
"""
