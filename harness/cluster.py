"""Clusters of an experiment: providers and devices, shapes, limits of links, connections."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from harness.canonical import JsonValue
from harness.sections import AbsolutePath, Section
from harness.written_values import HIGHEST_MBIT
from strategies.tpu_slices import Accelerator

Device: TypeAlias = Literal["cpu", "gpu", "tpu", "tpu-emulated"]
"""Device of a case's replicas, as records name it."""
Hardware: TypeAlias = Literal["cpu", "gpu", "tpu"]
"""Device of a host that a case needs; emulated TPU cores need its CPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProviderTraits:
    """Traits of a provider.

    Attributes:
        devices: kinds of device that its workers can have.
        shapes_links: True if it can limit the rate between workers.
    """

    summary: str
    devices: tuple[Device, ...]
    shapes_links: bool = False


PROVIDERS: Mapping[str, ProviderTraits] = {
    "local": ProviderTraits(
        summary="Worker processes on this machine under their own Ray instance; memory is not limited",
        devices=("cpu", "gpu", "tpu", "tpu-emulated"),
    ),
    "docker": ProviderTraits(
        summary="A container for each worker on this host, with cores, memory and a network of its own",
        devices=("cpu", "gpu", "tpu-emulated"),
        shapes_links=True,
    ),
    "cluster": ProviderTraits(
        summary="Nodes of a Ray cluster that is there already, at cluster.address",
        devices=("cpu", "gpu", "tpu", "tpu-emulated"),
    ),
}


def describe() -> list[dict[str, object]]:
    """Return the rows of `list providers`."""
    return [{"name": name, "summary": provider.summary, "params": []} for name, provider in PROVIDERS.items()]


_BURST_S = 0.004  # possible delay of a timer
_MOST_BURST_S = 0.008
# The largest piece that TCP sends at once, with its packets' headers. A smaller bucket splits it, and the
# packets are acknowledged one by one.
_WHOLE_BYTES = 72_000
_LEAST_BURST_BYTES = 16_000
MOST_MBIT = 30_000.0
"""Highest rate of the kernel's token bucket, which limits links: 2³² bytes per second, rounded down."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkLimit:
    """Limit of one worker's link, the same in both directions.

    Attributes:
        burst_bytes: bytes that may pass at once after a pause.
    """

    rate_mbit: float
    burst_bytes: int


Limits: TypeAlias = Sequence[LinkLimit | None]
"""Limits of each worker's link in worker order; None for no limit."""


Rate: TypeAlias = Annotated[float, Field(gt=0, le=HIGHEST_MBIT, allow_inf_nan=False)]
Burst: TypeAlias = Annotated[int, Field(ge=2, le=10**6)]


class WorkerLink(Section):
    """Limit of one worker's link, in place of the common one; a rate of None means no limit.

    Attributes:
        burst_kb: thousands of bytes; None takes the common one.
    """

    rate_mbit: Rate | None
    burst_kb: Burst | None = None


WorkerLinks: TypeAlias = tuple[tuple[int, WorkerLink], ...]
"""Workers with a limit of their own → limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShapeLink:
    """Requested limits of the links of a shape's workers.

    Attributes:
        rate_mbit: rate of each worker's link in Mbit/s; None for no limit.
        burst_kb: thousands of bytes; None derives it from the rate.
        workers: links with a limit of their own.
    """

    rate_mbit: float | None = None
    burst_kb: int | None = None
    workers: WorkerLinks = ()

    def limits(self, n_workers: int) -> Limits:
        """Limits of the links of all workers."""
        links = dict(self.workers)
        settings = (
            (links[worker].rate_mbit, links[worker].burst_kb or self.burst_kb)
            if worker in links
            else (self.rate_mbit, self.burst_kb)
            for worker in range(n_workers)
        )
        return tuple(_limit(rate, burst) for rate, burst in settings)

    def other_keys(self) -> dict[str, JsonValue]:
        """Keys of `cluster.link` other than the rate; none by default."""
        workers: dict[str, JsonValue] = {str(worker): link.model_dump() for worker, link in self.workers}
        return {
            # Runs from before there were such keys keep their hash.
            **({} if self.burst_kb is None else {"burst_kb": self.burst_kb}),
            **({"workers": workers} if workers else {}),
        }


UNLIMITED = ShapeLink()


def rate_between(sender: LinkLimit | None, receiver: LinkLimit | None) -> float | None:
    """Rate in Mbit/s from one worker to another, that of the slower link; None without a limit."""
    return min((limit.rate_mbit for limit in (sender, receiver) if limit is not None), default=None)


def _limit(rate_mbit: float | None, burst_kb: int | None) -> LinkLimit | None:
    if rate_mbit is None:
        return None
    burst_bytes = _burst_bytes(rate_mbit * 1e6 / 8) if burst_kb is None else burst_kb * 1000
    return LinkLimit(rate_mbit=rate_mbit, burst_bytes=burst_bytes)


def _burst_bytes(bytes_per_s: float) -> int:
    """Burst that does not lower the rate on a busy machine, but is much smaller than a step's bytes."""
    least_bytes = _WHOLE_BYTES if bytes_per_s * _MOST_BURST_S >= _WHOLE_BYTES else _LEAST_BURST_BYTES
    return max(least_bytes, int(bytes_per_s * _BURST_S))


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
    """A Ray cluster, and the placement of a run's workers on it.

    Attributes:
        address: `host:port` of its server for clients; None for no cluster.
        token_file: file with the cluster's token; None for a cluster without one.
        data_network: network between workers, as CIDR; None leaves the choice to their routes.
        placement: `spread` gives each worker its own node, `pack` lets them share nodes.
        slice: TPU slice with the workers' hosts; None takes any node with the resources that they need.
    """

    address: Annotated[str, BeforeValidator(_address)] | None = None
    token_file: AbsolutePath | None = None
    data_network: Annotated[str, BeforeValidator(_network)] | None = None
    placement: Placement = "spread"
    slice: Slice | None = None


NO_CLUSTER = Connection()


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterShape:
    """Workers of a case, or of several cases that share them.

    Attributes:
        workers: number of worker processes.
        memory_bytes: memory of each worker; None leaves the choice to the provider.
        image: container image; None for the provider's own.
        connection: existing Ray cluster for the workers.
        share_gpus: True if replicas may share GPUs when there are too few.
    """

    provider: str = "local"
    workers: int
    replicas_per_worker: int = 1
    device: Device = "cpu"
    cores_per_worker: int = 1
    memory_bytes: int | None = None
    image: str | None = None
    link: ShapeLink = UNLIMITED
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
        """True if its devices serve one process at a time, so that only one case can be ready."""
        return self.hardware == "tpu"

    @property
    def size(self) -> str:
        return f"{self.workers}x{self.replicas_per_worker}"

    @property
    def links(self) -> Limits:
        return self.link.limits(self.workers)

    @property
    def cluster(self) -> ClusterShape:
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
        return dataclasses.replace(self, workers=workers, replicas_per_worker=replicas, link=UNLIMITED)


def largest(shapes: Sequence[ClusterShape]) -> ClusterShape:
    """The shape that has room for each of several of one cluster; its links have no limit."""
    return dataclasses.replace(
        shapes[0].cluster,
        workers=max(shape.workers for shape in shapes),
        replicas_per_worker=max(shape.replicas_per_worker for shape in shapes),
    )
