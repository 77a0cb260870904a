"""What TPU slices have: as many hosts and chips as their topology says."""

from dataclasses import dataclass

from harness.errors import UsageError
from harness.provision.base import ClusterShape
from harness.provision.connection import Slice


@dataclass(frozen=True, kw_only=True, slots=True)
class SliceFacts:
    """What a slice has.

    Attributes:
        kind: as Ray labels its nodes, such as v4-16.
        n_hosts: each with chips_per_host.
    """

    kind: str
    n_hosts: int
    chips_per_host: int


def facts_of(wanted: Slice) -> SliceFacts:
    """Tell what a slice has.

    Raises:
        UsageError: there is no such slice.
    """
    # The first and the last are not public: Ray tells in no other way whether there is such a slice,
    # and how its nodes are labelled.
    from ray.util.tpu import (
        TPUAcceleratorManager,
        get_tpu_worker_resources,
        infer_tpu_pod_type_from_topology,
    )

    if not TPUAcceleratorManager.is_valid_tpu_accelerator_topology(wanted.accelerator, wanted.topology):
        raise UsageError(
            f"must be one that {wanted.accelerator} comes in, got {wanted.topology}; "
            "https://cloud.google.com/tpu/docs/system-architecture-tpu-vm lists them",
            field="cluster.slice.topology",
        )
    n_hosts, of_host = get_tpu_worker_resources(wanted.topology, wanted.accelerator)
    kind = infer_tpu_pod_type_from_topology(wanted.topology, wanted.accelerator)
    return SliceFacts(kind=str(kind), n_hosts=n_hosts, chips_per_host=int(of_host["TPU"]))


def require_hosts(shape: ClusterShape) -> None:
    """Look whether workers are as many as the hosts of the slice that they are to be on.

    Raises:
        UsageError: they are not, or a worker has more replicas than its host has chips.
    """
    wanted = shape.connection.slice
    if wanted is None:
        return
    facts = facts_of(wanted)
    told = f"a {wanted.accelerator} slice {wanted.topology}"
    if shape.workers != facts.n_hosts:
        raise UsageError(
            f"must be {facts.n_hosts} for {told}, one on each of its hosts, got {shape.workers}; set "
            f"cluster.workers={facts.n_hosts}, or take a slice of another topology",
            field="cluster.workers",
        )
    if shape.replicas_per_worker > facts.chips_per_host:
        raise UsageError(
            f"must be at most {facts.chips_per_host} for {told}, the chips of a host, got "
            f"{shape.replicas_per_worker}; lower it",
            field="cluster.replicas_per_worker",
        )
