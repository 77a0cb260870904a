"""Misspelt keys of cluster files: those that are nearly a key which is known."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

import yaml

_BESIDE_READY_MADE = re.findall(
    r"\S+",
    """GroupName acceleratorConfig accessConfigs args automaticRestart cache_stopped_nodes configMap
    cpuPlatform diskType enableExternalIps envFrom hostPath httpGet idleTimeoutSeconds idle_timeout_s
    initContainers ipv6AccessConfigs networkConfigs networkIP nodeAffinity persistentVolumeClaim
    port scheme serviceAccountToken source startupProbe subPath successThreshold tcpSocket valueFrom
    ephemeral-storage head_run_options initialDelaySeconds instanceTerminationAction minCpuPlatform network
    networkConfig networkInterfaces nvidia.com/gpu operator preemptible privileged provisioningModel
    pull_before_run reserved schedulingConfig scopes serviceAccount serviceAccountName serviceAccounts spot
    ssh_private_key subnetwork tags terminationGracePeriodSeconds timeoutSeconds tolerations topology
    upscaling_speed use_internal_ips""",
)
"""Keys that a cluster of ours can need and no ready-made file has, of Ray's launcher, of KubeRay, and of
https://cloud.google.com/compute/docs/reference/rest/v1/instances and
https://cloud.google.com/tpu/docs/reference/rest/v2alpha1/projects.locations.nodes."""
_NAMED_BY_USERS = ("annotations", "available_node_types", "file_mounts", "labels", "metadata", "nodeSelector")
_NEARLY = 0.83


def misspelt_keys(document: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Dotted path of each key that nobody knows and that is nearly another, and what was probably meant."""
    known = _known_keys()
    in_lower_case = {key.lower(): key for key in sorted(known)}
    for path, key in _keys(document):
        close = difflib.get_close_matches(key.lower(), in_lower_case, n=1, cutoff=_NEARLY)
        if close and key not in known:
            yield f"{path}{key}", in_lower_case[close[0]]


@lru_cache(maxsize=1)
def _known_keys() -> frozenset[str]:
    """Keys of the ready-made files, and a few more."""
    ready_made = (yaml.safe_load(path.read_text()) for path in Path(__file__).parent.glob("*.yaml"))
    return frozenset(key for document in ready_made for _, key in _keys(document)).union(_BESIDE_READY_MADE)


def _keys(value: object, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, str]]:
    """Every key with the dotted path to it, but those that users name themselves; what is shared, once."""
    seen = set() if seen is None else seen
    if id(value) in seen or not isinstance(value, Mapping | list):
        return
    seen.add(id(value))
    for key, below in value.items() if isinstance(value, Mapping) else enumerate(value):
        if isinstance(value, Mapping):
            yield path, str(key)
        if key not in _NAMED_BY_USERS:
            yield from _keys(below, f"{path}{key}.", seen)
        elif key == "available_node_types" and isinstance(below, Mapping):
            for name, node_type in below.items():
                yield from _keys(node_type, f"{path}{key}.{name}.", seen)
