"""Shape of a cluster: its workers, what each of them has, and the Ray cluster that they run on, if any."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from harness.cluster.link_limits import Limits, WorkerLinks, limits_of
from harness.sections import AbsolutePath, Section
from strategies.tpu_slices import Accelerator

if TYPE_CHECKING:
    from harness.cluster.providers import Device, Hardware


Placement = Literal["spread", "pack"]

_ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?):(?P<port>\d{1,5})")
_TOPOLOGY = re.compile(r"[1-9]\d*(x[1-9]\d*){1,2}")


def _address(value: object) -> object:
    match = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if match is None or not 0 < int(match["port"]) < 2**16:
        raise PydanticCustomError(
            "address", "must be host:port of Ray's server for clients, such as head:10001"
        )
    return value


def _network(value: object) -> object:
    if isinstance(value, str) and "/" in value:
        with suppress(ValueError):
            ipaddress.IPv4Network(value)
            return value
    raise PydanticCustomError("network", "must be a network of IPv4 as CIDR, such as 10.0.0.0/16")


def _topology(value: object) -> object:
    if not (isinstance(value, str) and _TOPOLOGY.fullmatch(value)):
        raise PydanticCustomError("topology", "must be chips along each axis, such as 2x2x2 or 4x4")
    return value


class Slice(Section):
    """A TPU slice: hosts whose chips are wired to each other, with a worker on each host.

    Attributes:
        topology: chips along each axis, such as 2x2x2.
    """

    accelerator: Accelerator
    topology: Annotated[str, BeforeValidator(_topology)]


class Connection(Section):
    """A Ray cluster and what a run may ask of it.

    Attributes:
        address: `host:port` of its server for clients; None for no cluster.
        token_file: holds the cluster's token; None for a cluster that asks for none.
        data_network: where workers reach each other, as CIDR; None leaves it to their routes.
        placement: whether each worker has a node of its own.
        slice: on whose hosts workers are; None takes any node that has what they need.
    """

    address: Annotated[str, BeforeValidator(_address)] | None = None
    token_file: AbsolutePath | None = None
    data_network: Annotated[str, BeforeValidator(_network)] | None = None
    placement: Placement = "spread"
    slice: Slice | None = None


NO_CLUSTER = Connection()


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterShape:
    """The workers that a case runs on, or that a provider brings up for several cases.

    Attributes:
        workers: worker processes.
        cores_per_worker, memory_bytes: of each worker; memory None leaves the choice to the provider.
        image: of containers, None for the provider's own.
        rate_mbit, burst_kb: limit of each worker's link, None for no limit and for a burst that suits it.
        worker_links: links with a limit of their own.
        connection: to a Ray cluster that is there already.
        share_gpus: whether replicas may share GPUs where there are too few for all.
    """

    provider: str = "local"
    workers: int
    replicas_per_worker: int = 1
    device: Device = "cpu"
    cores_per_worker: int = 1
    memory_bytes: int | None = None
    image: str | None = None
    rate_mbit: float | None = None
    burst_kb: int | None = None
    worker_links: WorkerLinks = ()
    connection: Connection = NO_CLUSTER
    share_gpus: bool = False

    @property
    def n_replicas(self) -> int:
        return self.workers * self.replicas_per_worker

    @property
    def hardware(self) -> Hardware:
        return "cpu" if self.device == "tpu-emulated" else self.device

    @property
    def alone(self) -> bool:
        """Whether its devices serve one process at a time, so that no two cases can be ready on them."""
        return self.hardware == "tpu"

    @property
    def size(self) -> str:
        return f"{self.workers}x{self.replicas_per_worker}"

    @property
    def links(self) -> Limits:
        return limits_of(self.rate_mbit, self.burst_kb, self.worker_links, self.workers)

    @property
    def site(self) -> ClusterShape:
        """One of the workers: what shapes must share for their cases to run on the same workers.

        Workers keep their devices from case to case, so that the largest shape in workers and the largest in
        replicas would take together more than any case needs; replicas on CPUs share them.
        """
        replicas = 1 if self.hardware == "cpu" else self.replicas_per_worker
        return self._unlimited(workers=1, replicas=replicas)

    def of_one_replica(self) -> ClusterShape:
        """The same for one device, which has no one to share with."""
        return self._unlimited(workers=1, replicas=1)

    def _unlimited(self, *, workers: int, replicas: int) -> ClusterShape:
        return dataclasses.replace(
            self,
            workers=workers,
            replicas_per_worker=replicas,
            rate_mbit=None,
            burst_kb=None,
            worker_links=(),
        )


def largest(shapes: Sequence[ClusterShape]) -> ClusterShape:
    """The shape that has room for each of several of one site; its links have no limit."""
    return dataclasses.replace(
        shapes[0].site,
        workers=max(shape.workers for shape in shapes),
        replicas_per_worker=max(shape.replicas_per_worker for shape in shapes),
    )
