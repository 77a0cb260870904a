"""Room for a run's workers on a Ray cluster: what they take, and what there is."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from harness.cluster.shape import ClusterShape
from harness.provision.cluster.tpu_slices import facts_of
from harness.provision.failures import ProvisionError

Resources = Mapping[str, float]


def resources_of(shape: ClusterShape) -> dict[str, float]:
    """What each worker takes of a node, as Ray counts it."""
    wanted: dict[str, float] = {"CPU": shape.cores_per_worker}
    if shape.connection.slice is not None:
        # All chips of a host: no two processes can share them.
        wanted["TPU"] = facts_of(shape.connection.slice).chips_per_host
    elif shape.hardware != "cpu":
        wanted[shape.hardware.upper()] = shape.replicas_per_worker
    return wanted


def actor_options(shape: ClusterShape) -> dict[str, object]:
    """The same as arguments of Ray's `options`."""
    wanted = resources_of(shape)
    options: dict[str, object] = {"num_cpus": wanted.pop("CPU"), "num_gpus": wanted.pop("GPU", 0)}
    return {**options, "resources": wanted}


def require_room(nodes: Sequence[Mapping[str, Any]], shape: ClusterShape) -> None:
    """Look whether a cluster has what a run's workers take, were nobody else there.

    Args:
        nodes: as `ray.nodes` describes them.
    Raises:
        ProvisionError: it has too little.
    """
    wanted = resources_of(shape)
    alive = [node for node in nodes if node["Alive"]]
    held = [_n_held(node["Resources"], wanted) for node in alive]
    spread = shape.connection.placement == "spread"
    n_room = sum(held) if not spread else sum(n > 0 for n in held)
    if n_room >= shape.workers:
        return
    needed = "a node of its own with" if spread else "room for"
    capacities = "; ".join(
        f"{node['NodeManagerAddress']} has {told(node['Resources'], wanted)}" for node in alive
    )
    way_out = "start more nodes, or lower cluster.workers"
    if spread and sum(held) >= shape.workers:
        way_out += ", or let workers share nodes with cluster.placement=pack"
    raise ProvisionError(
        f"each of {shape.workers} workers needs {needed} {amounts(wanted)}, got {n_room} such among "
        f"{len(alive)} nodes ({capacities}); {way_out}",
        field="cluster.workers",
    )


def amounts(wanted: Resources) -> str:
    """Resources as a message says them."""
    return " and ".join(f"{amount:g} {name}" for name, amount in wanted.items())


def told(resources: Resources, wanted: Resources) -> str:
    """How much there is of what is wanted, as a message says it."""
    return " and ".join(f"{resources.get(name, 0):g} {name}" for name in wanted)


def _n_held(resources: Resources, wanted: Resources) -> int:
    return min(math.floor(resources.get(name, 0) / amount) for name, amount in wanted.items())
