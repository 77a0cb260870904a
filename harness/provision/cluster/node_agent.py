"""Agent beside workers on each node of somebody else's cluster: it knows the node and carries files."""

import os
import socket
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from harness.host_facts import clock_hz, machine
from harness.provision.source_hash import source_hash, version
from harness.provision.temporary.reaper import owned, reap
from harness.records.facts.circumstances import Machine
from harness.worker.process import file_bundle
from harness.worker.process.file_bundle import Stamp
from harness.worker.process.os_process import boot_id

if TYPE_CHECKING:
    import ray

_ANY_PORT = 9  # nothing is sent there


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeFacts:
    """A node as the code on it sees it.

    Attributes:
        address: by which Ray knows it. addresses: all of IPv4.
        source: hash of the project's code there. version: of it.
        cores: those that its processes may use. boot: of its machine, by which nodes on one are told.
        clock_hz: the most that a core runs at.
    """

    node_id: str
    address: str
    addresses: tuple[str, ...]
    source: str
    version: str
    cores: tuple[int, ...]
    boot: str
    machine: Machine
    clock_hz: float


class NodeAgent:
    """Owns a run's folder on one node: it is gone, and all that ran in its name, when this actor has ended.

    Args:
        folder: of the run, at the same place on every node.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._stack = ExitStack()

    def facts(self) -> NodeFacts:
        """Describe the node."""
        import ray

        return NodeFacts(
            node_id=ray.get_runtime_context().get_node_id(),
            address=ray.util.get_node_ip_address(),
            addresses=tuple(_addresses()),
            source=source_hash(),
            version=version(),
            cores=tuple(sorted(os.sched_getaffinity(0))),
            boot=boot_id(),
            machine=machine(),
            clock_hz=clock_hz(),
        )

    def source_of(self, peer: str) -> str:
        """The address from which this node reaches another."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            asked.connect((peer, _ANY_PORT))
            return str(asked.getsockname()[0])

    def settle(self, folders: Sequence[str]) -> None:
        """Make the run's folder, and folders below it."""
        reap(self._folder.parent)
        self._stack.enter_context(owned(self._folder))
        self.make(folders)

    def make(self, folders: Sequence[str]) -> None:
        """Make folders, where they are not there, below the run's."""
        for name in folders:
            (self._folder / name).mkdir(parents=True, exist_ok=True)

    def present(self, roots: Sequence[str]) -> dict[str, Stamp]:
        """All files in some of the folders below the run's."""
        files: dict[str, Stamp] = {}
        for root in roots:
            listed = file_bundle.listing(self._folder / root)
            files.update({f"{root}/{name}": stamp for name, stamp in listed.items()})
        return files

    def pack(self, names: Sequence[str]) -> bytes:
        """An archive with files of the run's folder."""
        return file_bundle.pack({name: self._folder / name for name in names})

    def unpack(self, archive: bytes, wanted: Collection[str]) -> None:
        """Take files out of an archive into the run's folder."""
        file_bundle.unpack(archive, self._folder, wanted)

    def leave(self) -> None:
        """End what runs in the run's name here, and remove its folder."""
        self._stack.close()


class _RemoteMethod(Protocol):
    def remote(self, *args: object) -> "ray.ObjectRef": ...


class NodeAgentHandle(Protocol):
    """A Ray handle of `NodeAgent`, whose methods answer with references."""

    facts: _RemoteMethod
    source_of: _RemoteMethod
    settle: _RemoteMethod
    make: _RemoteMethod
    present: _RemoteMethod
    pack: _RemoteMethod
    unpack: _RemoteMethod
    leave: _RemoteMethod


def _addresses() -> list[str]:
    from pyroute2 import IPRoute  # as long as half a second, and drivers need none of it

    with IPRoute() as route:
        known = (each.get_attr("IFA_LOCAL") for each in route.get_addr(family=socket.AF_INET))
        return [str(address) for address in known if address is not None]
