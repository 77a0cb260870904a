"""Removal of all that dead runs have left on this machine, wherever they were provided."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.provision.failures import ProvisionError
from harness.provision.temporary.reaper import reap


@dataclass(frozen=True, kw_only=True, slots=True)
class Cleaned:
    """What was removed, by name.

    Attributes:
        containers: and networks; None where no engine answers.
    """

    folders: Sequence[str]
    containers: Sequence[str] | None


def clean() -> Cleaned:
    """Remove folders, processes, containers and networks of dead runs; never those of a living one."""
    folders = tuple(str(folder) for folder in reap())
    try:
        return Cleaned(folders=folders, containers=_containers())
    except ProvisionError:
        return Cleaned(folders=folders, containers=None)


def _containers() -> Sequence[str]:
    from harness.provision.docker.engine import engine
    from harness.provision.docker.leftovers import reap as reap_containers

    with engine() as client:
        return reap_containers(client)
