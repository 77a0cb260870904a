"""Table of providers, and removal of everything that dead runs left on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, cast

from harness.provision.failures import ProvisionError
from harness.provision.temporary_folder import dead_folders, reap

if TYPE_CHECKING:
    from harness.provision.protocols import Provider


MODULES: Mapping[str, str] = {
    "local": "harness.provision.local",
    "docker": "harness.provision.docker.provider",
    "cluster": "harness.provision.cluster.provider",
}
"""Module of each provider of `harness.cluster.PROVIDERS`, with the functions of `protocols.Provider`."""


def provider_of(name: str) -> Provider:
    """Import a provider's module, and only then its packages, which others do not need."""
    return cast("Provider", import_module(MODULES[name]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Cleaned:
    """Names of removed items, or with `dry_run` of those to remove.

    Attributes:
        containers: containers and networks; None if no engine answers.
    """

    folders: Sequence[str]
    containers: Sequence[str] | None


def clean(*, dry_run: bool = False) -> Cleaned:
    """Remove folders, processes, containers and networks of dead runs.

    Args:
        dry_run: True only lists them.
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
