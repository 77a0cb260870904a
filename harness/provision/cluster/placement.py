"""Placement of a run's workers on nodes, or on hosts of a TPU slice, of a Ray cluster."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.tpu import slice_placement_group

from harness.cluster import ClusterShape
from harness.provision.cluster.tpu_slices import amounts, available, facts_of, require_room, resources_of
from harness.provision.failures import ProvisionError
from harness.provision.ray.client import Head

# Ray's labels of nodes with TPUs; https://docs.ray.io/en/latest/ray-core/scheduling/labels.html
_KIND = "ray.io/tpu-pod-type"
_TOPOLOGY = "ray.io/tpu-topology"
_NAME = "ray.io/tpu-slice-name"
_WORKER = "ray.io/tpu-worker-id"
_SELECTED = (_KIND, _TOPOLOGY, _NAME, _WORKER)

Node = Mapping[str, Any]


def whole_slices(nodes: Sequence[Node], shape: ClusterShape) -> list[list[dict[str, str]]]:
    """Find complete slices of the kind that a run's workers need.

    Args:
        nodes: nodes as `ray.nodes` describes them.
    Returns:
        Labels of each slice's hosts, in the slice's own order of hosts.
    Raises:
        ProvisionError: there is none.
    """
    wanted = shape.connection.slice
    assert wanted is not None
    facts = facts_of(wanted)
    needed = resources_of(shape)
    alive = [node for node in nodes if node["Alive"]]
    slices: dict[str, dict[int, dict[str, str]]] = {}
    for node in alive:
        labels = node["Labels"]
        has_room = all(node["Resources"].get(name, 0) >= amount for name, amount in needed.items())
        # Slices of different topologies may have the same kind; not every host reports its topology.
        is_wanted = (
            labels.get(_KIND) == facts.kind and labels.get(_TOPOLOGY, wanted.topology) == wanted.topology
        )
        if is_wanted and has_room:
            # A slice with a single host may have neither name nor number.
            hosts = slices.setdefault(labels.get(_NAME, node["NodeID"]), {})
            hosts[int(labels.get(_WORKER, 0))] = {key: labels[key] for key in _SELECTED if key in labels}
    numbers = list(range(facts.n_hosts))
    whole = [[hosts[k] for k in numbers] for _, hosts in sorted(slices.items()) if sorted(hosts) == numbers]
    if not whole:
        raise ProvisionError(
            f"must be there as {facts.kind} {wanted.topology}, {facts.n_hosts} hosts with {amounts(needed)} "
            f"each, got {_inventory(alive, slices)}; start it, or name a slice that is there",
            field="cluster.slice",
        )
    return whole


@contextmanager
def placed_on_slice(shape: ClusterShape, head: Head, *, within_s: float) -> Iterator[PlacementGroup]:
    """Reserve a slice, with worker k on its host k; it is released when the context ends.

    Ray itself would take any slice whose first host is free, even if its other hosts are gone.

    Raises:
        ProvisionError: others use the needed resources.
    """
    wanted = shape.connection.slice
    assert wanted is not None
    whole = whole_slices(ray.nodes(), shape)
    for hosts in whole:
        reserved = slice_placement_group(
            wanted.topology,
            wanted.accelerator,
            resources_per_bundle=resources_of(shape),
            strategy="STRICT_SPREAD",
            bundle_label_selector=hosts,
        )
        try:
            group = reserved.slice_placement_group
            if head.call(partial(_is_ready, group, within_s / len(whole))):
                yield group
                return
        finally:
            with suppress(RayError, ConnectionError):
                head.call(reserved.shutdown)
    raise ProvisionError(
        f"all {len(whole)} {wanted.accelerator} slices {wanted.topology} were in use for {within_s:g} s; "
        "wait for others' work to end, or end it",
        field="cluster.slice",
    )


def _is_ready(group: PlacementGroup, within_s: float) -> bool:
    try:
        ray.get(group.ready(), timeout=within_s)
    except GetTimeoutError:
        return False
    return True


def _inventory(alive: Sequence[Node], slices: Mapping[str, Mapping[int, object]]) -> str:
    if slices:
        return ", ".join(f"{len(hosts)} of {name}" for name, hosts in sorted(slices.items()))
    tpu_nodes = [node for node in alive if node["Resources"].get("TPU", 0)]
    if not tpu_nodes:
        return f"no TPU on any of {len(alive)} nodes"
    return "; ".join(
        f"{node['NodeManagerAddress']} of {_kind_of(node['Labels'])} with "
        f"{node['Resources'].get('CPU', 0):g} CPU and {node['Resources']['TPU']:g} TPU"
        for node in tpu_nodes
    )


def _kind_of(labels: Mapping[str, str]) -> str:
    return " ".join(labels[key] for key in (_KIND, _TOPOLOGY) if key in labels) or "no slice"


_PLACED_S = 60.0
_JOINED_S = 15.0  # a new cluster has its head before its other nodes
_POLL_S = 0.5
_STRATEGIES = {"spread": "STRICT_SPREAD", "pack": "PACK"}


def await_room(shape: ClusterShape) -> None:
    """Wait until the connected cluster has the resources of a run's workers.

    Raises:
        ProvisionError: it has too little, and no node that would help has joined in time.
    """
    limit_s = time.monotonic() + _JOINED_S
    while True:
        try:
            require_nodes(shape)
            return
        except ProvisionError:
            if time.monotonic() > limit_s:
                raise
        time.sleep(_POLL_S)


def require_nodes(shape: ClusterShape) -> None:
    """Require the resources of a run's workers in the connected cluster.

    Raises:
        ProvisionError: the cluster has too little.
    """
    if shape.connection.slice is None:
        require_room(ray.nodes(), shape)
    else:
        whole_slices(ray.nodes(), shape)


@contextmanager
def placed(shape: ClusterShape, head: Head) -> Iterator[PlacementGroup]:
    """Reserve resources for every worker; they are released when the context ends.

    Raises:
        ProvisionError: others use the needed resources.
    """
    if shape.connection.slice is not None:
        with placed_on_slice(shape, head, within_s=_PLACED_S) as group:
            yield group
        return
    wanted = resources_of(shape)
    group = placement_group([dict(wanted)] * shape.workers, strategy=_STRATEGIES[shape.connection.placement])
    try:
        try:
            head.call(lambda: ray.get(group.ready(), timeout=_PLACED_S))
        except GetTimeoutError:
            free = ray.available_resources()
            raise ProvisionError(
                f"each of {shape.workers} workers needs {amounts(wanted)} within "
                f"{_PLACED_S:g} s, got no place for all of them; free are "
                f"{available(free, wanted)} in all, so wait for others' work to end, or end it",
                field="cluster.workers",
            ) from None
        yield group
    finally:
        with suppress(RayError, ConnectionError):
            head.call(lambda: remove_placement_group(group))
