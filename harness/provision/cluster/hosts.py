"""Nodes of a run on a shared Ray cluster, each with an agent of the run, and the cores of their workers."""

import contextlib
import ipaddress
import os
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from harness.cluster import ClusterShape
from harness.host_facts import clock_hz, machine
from harness.provision.cluster import file_archives
from harness.provision.cluster.file_archives import Stamp
from harness.provision.failures import HEAD_GONE, ProvisionError
from harness.provision.hosts import Hosts
from harness.provision.ray.client import Head
from harness.provision.source_hash import source_hash, version
from harness.provision.temporary_folder import owned, reap
from harness.records.conditions import Machine
from harness.worker.process.os_process import boot_id

_ANY_PORT = 9  # nothing is sent there


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeFacts:
    """Facts that a node reports about itself.

    Attributes:
        address: its address in Ray. addresses: all of its IPv4 addresses.
        source: hash of the project's code on it. version: the project's version on it.
        cores: cores that its processes may use. boot: boot id of its machine; nodes on one machine share it.
        clock_hz: highest clock of a core.
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
    """Owner of a run's folder on one node; when the actor ends, the folder and its processes are removed.

    Args:
        folder: the run's folder, the same path on every node.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._stack = ExitStack()

    def facts(self) -> NodeFacts:
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
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((peer, _ANY_PORT))
            return str(probe.getsockname()[0])

    def settle(self, folders: Sequence[str]) -> None:
        reap(self._folder.parent)
        self._stack.enter_context(owned(self._folder))
        self.make(folders)

    def make(self, folders: Sequence[str]) -> None:
        for name in folders:
            (self._folder / name).mkdir(parents=True, exist_ok=True)

    def present(self, roots: Sequence[str]) -> dict[str, Stamp]:
        files: dict[str, Stamp] = {}
        for root in roots:
            listed = file_archives.listing(self._folder / root)
            files.update({f"{root}/{name}": stamp for name, stamp in listed.items()})
        return files

    def pack(self, names: Sequence[str]) -> bytes:
        return file_archives.pack({name: self._folder / name for name in names})

    def unpack(self, archive: bytes, wanted: Collection[str]) -> None:
        file_archives.unpack(archive, self._folder, wanted)

    def leave(self) -> None:
        """End all processes of the run on this node, and remove its folder."""
        self._stack.close()


class _RemoteMethod(Protocol):
    def remote(self, *args: object) -> "ray.ObjectRef": ...


class NodeAgentHandle(Protocol):
    """Ray handle of a `NodeAgent`, whose methods return references."""

    facts: _RemoteMethod
    source_of: _RemoteMethod
    settle: _RemoteMethod
    make: _RemoteMethod
    present: _RemoteMethod
    pack: _RemoteMethod
    unpack: _RemoteMethod
    leave: _RemoteMethod


def _addresses() -> list[str]:
    from pyroute2 import IPRoute  # up to half a second, and drivers do not need it

    with IPRoute() as route:
        known = (address.get_attr("IFA_LOCAL") for address in route.get_addr(family=socket.AF_INET))
        return [str(address) for address in known if address is not None]


def cores_of_workers(
    facts: Sequence[NodeFacts], cores_per_worker: int, fixed_cores: Mapping[int, tuple[int, ...] | None]
) -> list[tuple[int, ...] | None]:
    """Cores of each worker, disjoint within the run; None for all workers of a machine with too few.

    Args:
        facts: facts about each worker's node. Nodes on one machine all see its cores.
        fixed_cores: cores of workers that run already, which stay as they are.
    """
    used: dict[str, set[int]] = {}
    for worker, cores in fixed_cores.items():
        used.setdefault(facts[worker].boot, set()).update(cores or ())
    core_sets = dict(fixed_cores)
    for worker, node in enumerate(facts):
        if worker not in fixed_cores:
            used_cores = used.setdefault(node.boot, set())
            own = tuple(core for core in node.cores if core not in used_cores)[:cores_per_worker]
            used_cores.update(own)
            core_sets[worker] = own if len(own) == cores_per_worker else None
    crowded = {facts[worker].boot for worker, cores in core_sets.items() if cores is None}
    return [
        None if worker not in fixed_cores and node.boot in crowded else core_sets[worker]
        for worker, node in enumerate(facts)
    ]


_ANSWER_S = 60.0
_LEAVE_S = 10.0


class ClusterHosts(Hosts):
    """Nodes of the workers as `hosts.Hosts`.

    Args:
        group: placement group with a bundle for each worker.
        require_room: raises ProvisionError if the cluster has too few nodes.
        folder: the run's folder, to be made on every node. below: folders to make in it.
    """

    def __init__(
        self,
        head: Head,
        group: PlacementGroup,
        shape: ClusterShape,
        require_room: Callable[[], None],
        folder: Path,
        below: Sequence[str],
    ) -> None:
        self._head = head
        self._group = group
        self._require_room = require_room
        self._connection = shape.connection
        self._cores_per_worker = shape.cores_per_worker
        self._folder = folder
        self._below = list(below)
        self._agents: dict[int, NodeAgentHandle] = {}
        self._facts: dict[int, NodeFacts] = {}
        self._addresses: dict[int, str] = {}
        self._cores: dict[int, tuple[int, ...] | None] = {}
        self._n_workers = shape.workers

    def start(self) -> None:
        """Choose the nodes of all workers.

        Raises:
            ProvisionError: a node lacks the project, has other code, or does not answer.
        """
        self._head.call(lambda: self._settle(range(self._n_workers)))

    def stop(self) -> None:
        """Remove all files and processes on nodes that still answer."""
        # A cluster without its head no longer answers; its nodes notice and clean up themselves.
        with contextlib.suppress(RayError, ConnectionError):
            self._head.call(self._leave)
        self._agents.clear()

    @property
    def addresses(self) -> Sequence[str]:
        return [self._addresses[worker] for worker in range(self._n_workers)]

    @property
    def facts(self) -> Sequence[NodeFacts]:
        return [self._facts[worker] for worker in range(self._n_workers)]

    def options(self, worker: int) -> Mapping[str, object]:
        placement = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=worker)
        return {"scheduling_strategy": placement}

    def cores(self, worker: int) -> tuple[int, ...] | None:
        return self._cores[worker]

    def agents(self, n_workers: int) -> Mapping[int, NodeAgentHandle]:
        """Agents of the first workers' nodes, one per node, by the number of one of its workers."""
        first_workers: dict[str, int] = {}
        for worker in range(n_workers):
            if worker in self._agents and worker in self._facts:
                first_workers.setdefault(self._facts[worker].node_id, worker)
        return {worker: self._agents[worker] for worker in first_workers.values()}

    def is_up(self) -> bool:
        return self._head.is_up()

    def replace_failed(self, n_workers: int) -> Sequence[int]:
        try:
            return self._head.call(lambda: self._renewed(n_workers))
        except ConnectionError as error:
            raise ProvisionError(HEAD_GONE) from error

    def _leave(self) -> None:
        leaving = [agent.leave.remote() for agent in self.agents(self._n_workers).values()]
        if leaving:
            ray.wait(leaving, num_returns=len(leaving), timeout=_LEAVE_S)
        for agent in self._agents.values():
            ray.kill(agent, no_restart=True)

    def _renewed(self, n_workers: int) -> Sequence[int]:
        references = {worker: self._agents[worker].make.remote([]) for worker in range(n_workers)}
        lost = [worker for worker, reference in references.items() if not _answers(reference)]
        if lost:
            self._require_room()
            # Ray moves the bundle of a lost node to another one.
            for worker in lost:
                ray.kill(self._agents.pop(worker), no_restart=True)
            self._settle(lost)
        return lost

    def _settle(self, workers: Sequence[int]) -> None:
        for worker in workers:
            remote = ray.remote(NodeAgent).options(num_cpus=0, **self.options(worker))
            self._agents[worker] = remote.remote(str(self._folder))
        for worker in workers:
            self._facts[worker] = self._introduced(worker)
        fixed_cores = {worker: cores for worker, cores in self._cores.items() if worker not in workers}
        self._cores = dict(enumerate(cores_of_workers(self.facts, self._cores_per_worker, fixed_cores)))
        known = {self._facts[worker].node_id for worker in self._agents if worker not in workers}
        settling = []
        for worker in workers:
            node = self._facts[worker].node_id
            if node not in known:
                known.add(node)
                settling.append(self._agents[worker].settle.remote(self._below))
        for reference in settling:
            self._answer(reference, f"a folder {self._folder} of its own")
        self._addresses = {worker: self._address(worker) for worker in self._facts}

    def _introduced(self, worker: int) -> NodeFacts:
        facts = self._answer(self._agents[worker].facts.remote(), "stratbench")
        assert isinstance(facts, NodeFacts)
        if facts.source != source_hash():
            raise ProvisionError(
                f"cluster: node {facts.address} must have the code that runs here, stratbench {version()} "
                f"(source {source_hash()[:12]}), got {facts.version} (source {facts.source[:12]}); install "
                "this one there, or start its Ray node from an image of it"
            )
        return facts

    def _address(self, worker: int) -> str:
        facts = self._facts[worker]
        if self._connection.data_network is not None:
            network = ipaddress.ip_network(self._connection.data_network)
            within = [address for address in facts.addresses if ipaddress.ip_address(address) in network]
            if not within:
                raise ProvisionError(
                    f"node {facts.address} must have an address in {network}, got "
                    f"{', '.join(facts.addresses)}; name another network",
                    field="cluster.data_network",
                )
            return within[0]
        peer = next((fact for fact in self._facts.values() if fact.node_id != facts.node_id), None)
        if peer is None:
            return facts.address
        return str(self._answer(self._agents[worker].source_of.remote(peer.address), "a route to its peers"))

    def _answer(self, reference: ray.ObjectRef, what: str) -> object:
        try:
            return ray.get(reference, timeout=_ANSWER_S)
        except (RayError, ConnectionError) as error:
            raise ProvisionError(
                f"cluster: a worker's node did not provide {what}: {_first_line(error)}; see the "
                "logs of the cluster's nodes"
            ) from error


def _answers(reference: ray.ObjectRef) -> bool:
    try:
        ray.get(reference, timeout=_ANSWER_S)
    except (RayError, ConnectionError):
        return False
    return True


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = next((line for line in reversed(lines) if "Error:" in line), lines[0] if lines else "")
    return f"{type(error).__name__}: {message[:200]}"
