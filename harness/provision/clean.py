"""Removal of all that dead runs have left on this machine, wherever they were provided."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.provision.failures import ProvisionError
from harness.provision.temporary.reaper import dead_folders, reap


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
