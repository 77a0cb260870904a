"""Table of providers, and the removal of everything that their dead runs left on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.provision.failures import ProvisionError
from harness.provision.protocols import StartLimits
from harness.provision.temporary_folder import dead_folders, reap

if TYPE_CHECKING:
    from harness.provision.protocols import Provider


def _local(exposure: str | None, limits: StartLimits) -> Provider:
    from harness.provision.local import LocalProvider

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
"""What makes each provider of `harness.cluster.PROVIDERS`.

It takes why strangers on the network can reach what this process starts, None if they cannot, and how long
starts may take.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cleaned:
    """Names of what was removed, or would be.

    Attributes:
        containers: and networks; None where no engine answers.
    """

    folders: Sequence[str]
    containers: Sequence[str] | None


def clean(*, dry_run: bool = False) -> Cleaned:
    """Remove folders, processes, containers and networks of dead runs; never those of a living one.

    Args:
        dry_run: only list them.
    """
    folders = tuple(str(folder) for folder in (dead_folders() if dry_run else reap()))
    try:
        return Cleaned(folders=folders, containers=_containers(dry_run=dry_run))
    except ProvisionError:
        return Cleaned(folders=folders, containers=None)


def _containers(*, dry_run: bool) -> Sequence[str]:
    from harness.provision.docker import leftovers
    from harness.provision.docker.engine import engine

    with engine() as client:
        return leftovers.dead_names(client) if dry_run else leftovers.reap(client)
