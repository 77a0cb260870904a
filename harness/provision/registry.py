"""Makes the provider of a name; what it needs is imported then."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.provision.protocols import Provider


def provider_of(name: str, exposure: str | None) -> Provider:
    """The provider of a name in `harness.cluster.providers.PROVIDERS`.

    Args:
        exposure: why strangers on the network can reach what this process starts, None if they cannot.
    """
    match name:
        case "local":
            from harness.provision.local.provider import LocalProvider

            return LocalProvider(exposure=exposure)
        case "docker":
            from harness.provision.docker.provider import DockerProvider

            return DockerProvider()  # its containers have networks of their own
        case "cluster":
            from harness.provision.cluster.provider import ClusterProvider

            return ClusterProvider()  # its workers are on a network of others
    raise AssertionError(name)
