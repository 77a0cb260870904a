"""Agreement within a cluster file, where a lack shows only when machines have been started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

_CHIPS = "google.com/tpu"
_ACCELERATOR = "cloud.google.com/gke-tpu-accelerator"
_TOPOLOGY = "cloud.google.com/gke-tpu-topology"


def disagreements(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Dotted path and rule of each part that does not agree with another."""
    if "apiVersion" in document:
        if document.get("kind") != "RayCluster":
            yield "kind", f"must be RayCluster, got {document.get('kind')!r}"
            return
        yield from _of_manifest(document["spec"])
        return
    for name, node_type in document["available_node_types"].items():
        path = f"available_node_types.{name}.node_config"
        node = node_type["node_config"]
        stays = node.get("scheduling", {}).get("onHostMaintenance") == "TERMINATE"
        if node.get("guestAccelerators") and not stays:
            yield path, "a machine with guestAccelerators needs scheduling.onHostMaintenance TERMINATE"
        is_machine = not {"machineType", "disks"}.isdisjoint(node)
        if not is_machine and ("acceleratorType" in node) == ("acceleratorConfig" in node):
            yield path, "needs one of acceleratorType and acceleratorConfig"


def _of_manifest(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    pods = {"spec.headGroupSpec": spec["headGroupSpec"]}
    pods |= {f"spec.workerGroupSpecs.{n}": group for n, group in enumerate(spec["workerGroupSpecs"])}
    for path, group in pods.items():
        pod = group["template"]["spec"]
        volumes = {volume["name"] for volume in pod.get("volumes", ())}
        for container in pod["containers"]:
            for mount in container.get("volumeMounts", ()):
                if mount["name"] not in volumes:
                    yield path, f"volumeMounts name {mount['name']!r}, which is none of volumes"
        yield from ((path, rule) for rule in _of_slice(group, pod))


def _of_slice(group: Mapping[str, Any], pod: Mapping[str, Any]) -> Iterator[str]:
    """A group with TPUs must have the hosts of its slice."""
    limits = pod["containers"][0]["resources"]["limits"]
    if _CHIPS not in limits:
        return
    selector = pod.get("nodeSelector", {})
    lacking = [key for key in (_ACCELERATOR, _TOPOLOGY) if key not in selector]
    if lacking:
        yield f"a group with {_CHIPS} needs {' and '.join(lacking)} in its nodeSelector"
        return
    n_hosts, n_chips = group.get("numOfHosts", 1), prod(map(int, selector[_TOPOLOGY].split("x")))
    if n_hosts * int(limits[_CHIPS]) != n_chips:
        yield (
            f"numOfHosts {n_hosts} with {limits[_CHIPS]} chips each must have the {n_chips} of "
            f"{selector[_TOPOLOGY]}"
        )
