"""Room for a run's workers on a Ray cluster: resources of workers, and hosts and chips of TPU slices.

This module does not import Ray, which reads on import how to connect to its clusters.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from harness.cluster import ClusterShape, Slice
from harness.errors import UsageError
from harness.provision.failures import ProvisionError
from strategies.errors import suggestion
from strategies.tpu_slices import CUBE, Accelerator

_CHIPS_PER_HOST = 4
_SMALL = ("v5litepod", "v6e")
"""Generations with one core per chip, and with slices of a single, larger host."""
_MOST_CHIPS_OF_A_HOST = 8
_UP_TO_256 = ("4x4", "4x8", "8x8", "8x16", "16x16")
_FROM_ONE = ("1x1", "2x2", "2x4", "2x8", *_UP_TO_256)
_BELOW_A_CUBE = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")


def _boxes_of_cubes(*most: int) -> Sequence[str]:
    lengths = (range(CUBE, length + 1, CUBE) for length in most)
    return ["x".join(map(str, dims)) for dims in itertools.product(*lengths)]


_RAYS_TOPOLOGIES: Mapping[Accelerator, Sequence[str]] = {
    "v2": _UP_TO_256,
    "v3": (*_UP_TO_256, "16x32", "32x32"),
    "v4": (*_BELOW_A_CUBE, *_boxes_of_cubes(12, 12, 16)),
    "v5p": (*_BELOW_A_CUBE, *_boxes_of_cubes(16, 16, 24)),
    "v5litepod": _FROM_ONE,
    "v6e": _FROM_ONE,
    "v7x": (*_BELOW_A_CUBE, "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16"),
}
"""Topologies that Ray reserves. It compares strings: 2x2x1 is one, 1x2x2 is not."""
Resources: TypeAlias = Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class SliceFacts:
    """Size of a slice.

    Attributes:
        kind: kind of slice as in Ray's node labels, such as v4-16.
        n_hosts: hosts, each with `chips_per_host` chips.
    """

    kind: str
    n_hosts: int
    chips_per_host: int


def facts_of(wanted: Slice) -> SliceFacts:
    """Size of a slice, in hosts and chips as Ray counts them.

    Raises:
        UsageError: Ray does not support such a slice.
    """
    accelerator, topology = wanted.accelerator, wanted.topology
    _require_topology(accelerator, topology)
    n_chips, is_small = math.prod(_dims(topology)), accelerator in _SMALL
    chips_per_host = n_chips if is_small and n_chips <= _MOST_CHIPS_OF_A_HOST else _CHIPS_PER_HOST
    return SliceFacts(
        kind=f"{accelerator}-{n_chips * (1 if is_small else 2)}",
        n_hosts=n_chips // chips_per_host,
        chips_per_host=chips_per_host,
    )


def _require_topology(accelerator: Accelerator, topology: str) -> None:
    known = _RAYS_TOPOLOGIES[accelerator]
    if topology in known:
        return
    permuted = [other for other in known if sorted(_dims(other)) == sorted(_dims(topology))]
    way_out = f"write it as {' or '.join(permuted)}" if permuted else suggestion(topology, known)
    raise UsageError(
        f"must be one that Ray reserves of {accelerator}, got {topology}; {way_out}",
        field="cluster.slice.topology",
    )


def _dims(topology: str) -> list[int]:
    return [int(length) for length in topology.split("x")]


def require_hosts(wanted: Slice, workers: Sequence[int], replicas: Sequence[int]) -> None:
    """Require as many workers as the slice has hosts.

    Args:
        workers: numbers of workers in the sweep. The run starts the largest; smaller cases use its first.
        replicas: numbers of replicas per worker in the sweep.
    Raises:
        UsageError: the numbers differ, a worker has more replicas than its host has chips, or there is no
            such slice.
    """
    facts = facts_of(wanted)
    description = f"a {wanted.accelerator} slice {wanted.topology}"
    if max(workers) != facts.n_hosts:
        raise UsageError(
            f"must be {facts.n_hosts} for {description}, one on each of its hosts, got {max(workers)}; set "
            f"cluster.workers={facts.n_hosts}, or take a slice of another topology",
            field="cluster.workers",
        )
    if max(replicas) > facts.chips_per_host:
        raise UsageError(
            f"must be at most {facts.chips_per_host} for {description}, the chips of a host, got "
            f"{max(replicas)}; lower it",
            field="cluster.replicas_per_worker",
        )


def resources_of(shape: ClusterShape) -> dict[str, float]:
    """Resources of a node that each worker takes, as Ray counts them."""
    wanted: dict[str, float] = {"CPU": shape.cores_per_worker}
    if shape.connection.slice is not None:
        # All chips of a host: processes cannot share them.
        wanted["TPU"] = facts_of(shape.connection.slice).chips_per_host
    elif shape.hardware != "cpu":
        wanted[shape.hardware.upper()] = shape.replicas_per_worker
    return wanted


def actor_options(shape: ClusterShape) -> dict[str, object]:
    """Resources of a worker, as arguments of Ray's `options`."""
    wanted = resources_of(shape)
    options: dict[str, object] = {"num_cpus": wanted.pop("CPU"), "num_gpus": wanted.pop("GPU", 0)}
    return {**options, "resources": wanted}


def require_room(nodes: Sequence[Mapping[str, Any]], shape: ClusterShape) -> None:
    """Require a cluster with the resources of a run's workers; use by others is ignored.

    Args:
        nodes: nodes as `ray.nodes` describes them.
    Raises:
        ProvisionError: the cluster has too little.
    """
    wanted = resources_of(shape)
    alive = [node for node in nodes if node["Alive"]]
    n_per_node = [_n_held(node["Resources"], wanted) for node in alive]
    spread = shape.connection.placement == "spread"
    n_room = sum(n_per_node) if not spread else sum(n > 0 for n in n_per_node)
    if n_room >= shape.workers:
        return
    needed = "a node of its own with" if spread else "room for"
    capacities = "; ".join(
        f"{node['NodeManagerAddress']} has {available(node['Resources'], wanted)}" for node in alive
    )
    way_out = "start more nodes, or lower cluster.workers"
    if spread and sum(n_per_node) >= shape.workers:
        way_out += ", or let workers share nodes with cluster.placement=pack"
    raise ProvisionError(
        f"each of {shape.workers} workers needs {needed} {amounts(wanted)}, got {n_room} such among "
        f"{len(alive)} nodes ({capacities}); {way_out}",
        field="cluster.workers",
    )


def amounts(wanted: Resources) -> str:
    """Resources as text for a message."""
    return " and ".join(f"{amount:g} {name}" for name, amount in wanted.items())


def available(resources: Resources, wanted: Resources) -> str:
    """Available amounts of the wanted resources, as text for a message."""
    return " and ".join(f"{resources.get(name, 0):g} {name}" for name in wanted)


def _n_held(resources: Resources, wanted: Resources) -> int:
    return min(math.floor(resources.get(name, 0) / amount) for name, amount in wanted.items())
