"""Places for a run's workers on the nodes of somebody else's Ray cluster."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from harness.cluster.shape import ClusterShape
from harness.provision.cluster.capacity import amounts, require_room, resources_of, told
from harness.provision.cluster.tpu_placement import placed_on_slice, whole_slices
from harness.provision.failures import ProvisionError
from harness.provision.ray.client import Head

_PLACED_S = 60.0
_JOINED_S = 15.0  # a cluster that was just started has its head before its other nodes
_POLL_S = 0.5
_STRATEGIES = {"spread": "STRICT_SPREAD", "pack": "PACK"}


def await_room(shape: ClusterShape) -> None:
    """Wait until the cluster that this process is connected to has what a run's workers take.

    Raises:
        ProvisionError: it has too little, and no node has joined it within a while that changes this.
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
    """Look whether the cluster that this process is connected to has what a run's workers take.

    Raises:
        ProvisionError: it has too little.
    """
    if shape.connection.slice is None:
        require_room(ray.nodes(), shape)
    else:
        whole_slices(ray.nodes(), shape)


@contextmanager
def placed(shape: ClusterShape, head: Head) -> Iterator[PlacementGroup]:
    """Reserve a place for every worker; they are free again when the context ends.

    Raises:
        ProvisionError: others use what the workers need.
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
                f"{told(free, wanted)} in all, so wait for others' work to end, or end it",
                field="cluster.workers",
            ) from None
        yield group
    finally:
        with suppress(RayError, ConnectionError):
            head.call(lambda: remove_placement_group(group))
