"""The experiment's `cluster` section: the shapes of its workers, and the Ray cluster that they run on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cluster.connection import CONNECTION_KEYS, Connection, Slice
from harness.cluster.link_limits import WorkerLink
from harness.cluster.providers import PROVIDERS
from harness.errors import UsageError
from harness.experiment.references import home_expanded
from harness.experiment.spec import SHAPE_KEYS, ClusterSpec

if TYPE_CHECKING:
    from harness.cluster.providers import Device
    from harness.experiment.schema import ClusterSection

_CLUSTER = ("cluster", ["cluster"])
"""How a document names the cluster provider."""
# A slice is more than a variable holds.
_AROUND_KEYS = tuple(key for key in CONNECTION_KEYS if key != "slice")


def cluster_from(section: ClusterSection) -> ClusterSpec:
    """The shapes that cases have.

    Raises:
        UsageError: for devices or limits of links that no case can have.
    """
    cluster = ClusterSpec(
        **{field: tuple(getattr(section, key)) for field, key in SHAPE_KEYS.items()},
        rate_mbit=tuple(section.link.rate_mbit),
        burst_kb=(section.link.burst_kb,),
        worker_links=(
            tuple(
                (worker, WorkerLink(rate_mbit=link.rate_mbit, burst_kb=link.burst_kb))
                for worker, link in sorted(section.link.workers.items())
            ),
        ),
        share_gpus=(section.share_gpus,),
    )
    _refuse_devices(cluster)
    if section.share_gpus:
        _refuse_sharing(cluster)
    _refuse_links(cluster)
    return cluster


def _refuse_devices(cluster: ClusterSpec) -> None:
    """Refuse devices that a provider's workers cannot have.

    Raises:
        UsageError: there is one.
    """
    for name in cluster.provider:
        able = PROVIDERS[name].devices
        unable = [device for device in cluster.device if device not in able]
        if unable:
            raise UsageError(
                f"must be {' or '.join(map(repr, able))} with the provider {name}, got {unable[0]!r}",
                field="cluster.device",
            )


def _refuse_sharing(cluster: ClusterSpec) -> None:
    """Refuse to share what are no GPUs, or GPUs that Ray gives to workers.

    Raises:
        UsageError: for either.
    """
    others = [device for device in cluster.device if device != "gpu"]
    if others:
        raise UsageError(
            f"is for cluster.device=gpu, got it with {others[0]}; drop it, or set cluster.device=gpu",
            field="cluster.share_gpus",
        )
    if "cluster" in cluster.provider:
        raise UsageError(
            "must be false with the provider cluster, where Ray gives each worker its own GPUs; lower "
            "cluster.workers or cluster.replicas_per_worker, or take --provider local on one of its hosts",
            field="cluster.share_gpus",
        )


def _refuse_links(cluster: ClusterSpec) -> None:
    """Refuse limits of links that no case can have.

    Raises:
        UsageError: a provider cannot limit links, or no case has the worker.
    """
    unable = [name for name in cluster.provider if not PROVIDERS[name].shapes_links]
    if unable and cluster.shapes_links:
        able = " or ".join(name for name, provider in PROVIDERS.items() if provider.shapes_links)
        raise UsageError(
            f"must be null with the provider {unable[0]}, which cannot limit links; use --provider {able}",
            field="cluster.link.rate_mbit",
        )
    n_workers = max(cluster.workers)
    for worker, _ in cluster.worker_links[0]:
        if worker >= n_workers:
            raise UsageError(
                f"must be a worker's number, 0 to {n_workers - 1}, got {worker}; workers are counted from 0",
                field="cluster.link.workers",
            )


def prices_from(section: ClusterSection) -> tuple[tuple[Device, float], ...]:
    """What workers cost an hour, by the devices that cases have."""
    prices = section.price_per_hour or {}
    return tuple((device, prices[device]) for device in section.device if device in prices)


def connection_from(section: ClusterSection) -> Connection:
    """How the cluster provider reaches its cluster.

    Raises:
        UsageError: for a connection without that provider, the provider without one or beside others, and a
            slice for workers that cannot be on one.
    """
    connection = Connection(
        address=section.address,
        token_file=None if section.token_file is None else Path(home_expanded(section.token_file)).absolute(),
        data_network=section.data_network,
        placement=section.placement,
        slice=None
        if section.slice is None
        else Slice(accelerator=section.slice.accelerator, topology=section.slice.topology),
    )
    if "cluster" in section.provider and len(section.provider) > 1:
        # Ray reads one token for each process, and every other provider makes its own.
        raise UsageError(
            f"cluster must be the only provider of an experiment, got {', '.join(section.provider)}; run it "
            "by itself and compare the two reports",
            field="cluster.provider",
        )
    if "cluster" not in section.provider:
        set_here = (key for key in CONNECTION_KEYS if key in section.model_fields_set)
        given = next((key for key in set_here if getattr(section, key) is not None), None)
        if given is not None:
            raise UsageError(
                f"is of the cluster provider, got it with {', '.join(section.provider)}; drop it, or take "
                "--provider cluster",
                field=f"cluster.{given}",
            )
    elif connection.address is None:
        raise UsageError(
            "must be given for the cluster provider, got nothing; set host:port of Ray's server for clients, "
            "as --set cluster.address=head:10001",
            field="cluster.address",
        )
    _refuse_slice(section)
    return connection


def without_connection(document: Mapping[str, object], values: Mapping[str, object]) -> dict[str, object]:
    """An experiment without what it says of a cluster, where its workers are to be of another provider.

    Args:
        values: dotted path → value that is laid over the document.
    """
    section = document.get("cluster")
    is_elsewhere = values.get("cluster.provider", "cluster") not in _CLUSTER
    if not is_elsewhere or not isinstance(section, Mapping) or section.get("provider") not in _CLUSTER:
        return dict(document)
    return {**document, "cluster": {k: v for k, v in section.items() if k not in CONNECTION_KEYS}}


def _refuse_slice(section: ClusterSection) -> None:
    """Refuse a TPU slice for workers that cannot be on one.

    Raises:
        UsageError: for another device, or a placement that puts workers beside each other.
    """
    if section.slice is None:
        return
    if set(section.device) != {"tpu"}:
        raise UsageError(
            f"is for the device tpu, got it with {', '.join(section.device)}; drop it, or set "
            "cluster.device=tpu",
            field="cluster.slice",
        )
    if section.placement == "pack":
        raise UsageError(
            "must be spread on a TPU slice, each of whose hosts has one worker, got pack; drop it",
            field="cluster.placement",
        )


def connection_around(document: Mapping[str, object], surroundings: Mapping[str, str]) -> dict[str, object]:
    """What variables say of a cluster that an experiment runs on and says no more of.

    Returns:
        dotted path → value, to lay over the document.
    """
    section = document.get("cluster")
    if not isinstance(section, Mapping) or section.get("provider") not in _CLUSTER:
        return {}
    if section.get("address") is not None:
        return {}
    values = {key: surroundings.get(f"STRATBENCH_CLUSTER_{key.upper()}") for key in _AROUND_KEYS}
    return {f"cluster.{key}": value for key, value in values.items() if value and key not in section}
