"""The keys of a KubeRay manifest that brings up a TPU slice.

https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/tpu.html
"""

from __future__ import annotations

from math import prod
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from harness.provision.cluster.files.launcher import Count, Keys, Labels, Text

_CHIPS = "google.com/tpu"
_ACCELERATOR = "cloud.google.com/gke-tpu-accelerator"
_TOPOLOGY = "cloud.google.com/gke-tpu-topology"
_Resource: TypeAlias = Literal["cpu", "memory", "ephemeral-storage", "google.com/tpu", "nvidia.com/gpu"]


class _Metadata(Keys):
    name: Text
    namespace: Text | None = None
    labels: Labels = {}
    annotations: Labels = {}


class _PodMetadata(Keys):
    labels: Labels = {}
    annotations: Labels = {}


class _Resources(Keys):
    requests: dict[_Resource, Text]
    limits: dict[_Resource, Text]


class _Variable(Keys):
    name: Text
    value: str


class _Port(Keys):
    name: Text
    containerPort: Annotated[int, Field(ge=1, lt=2**16)]


class _Mount(Keys):
    name: Text
    mountPath: Text
    readOnly: bool = False


class _Exec(Keys):
    command: list[str]


class _Probe(Keys):
    exec: _Exec
    initialDelaySeconds: Count = 0
    periodSeconds: Count = 10
    timeoutSeconds: Count = 1
    failureThreshold: Count = 3


class _Capabilities(Keys):
    add: list[Text] = []
    drop: list[Text] = []


class _ContainerSecurity(Keys):
    allowPrivilegeEscalation: bool | None = None
    privileged: bool | None = None
    capabilities: _Capabilities | None = None


class _Container(Keys):
    name: Text
    image: Text
    imagePullPolicy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    resources: _Resources
    ports: list[_Port] = []
    env: list[_Variable] = []
    volumeMounts: list[_Mount] = []
    securityContext: _ContainerSecurity | None = None
    readinessProbe: _Probe | None = None
    livenessProbe: _Probe | None = None


class _Secret(Keys):
    secretName: Text
    defaultMode: int | None = None


class _EmptyDir(Keys):
    medium: Literal["", "Memory"] = ""
    sizeLimit: Text | None = None


class _Volume(Keys):
    name: Text
    secret: _Secret | None = None
    emptyDir: _EmptyDir | None = None


class _PodSecurity(Keys):
    runAsUser: Count | None = None
    runAsGroup: Count | None = None
    fsGroup: Count | None = None


class _Toleration(Keys):
    key: Text
    operator: Literal["Exists", "Equal"] = "Equal"
    value: Text | None = None
    effect: Text | None = None


class _PodSpec(Keys):
    containers: Annotated[list[_Container], Field(min_length=1)]
    volumes: list[_Volume] = []
    nodeSelector: Labels = {}
    tolerations: list[_Toleration] = []
    securityContext: _PodSecurity | None = None
    serviceAccountName: Text | None = None
    terminationGracePeriodSeconds: Count | None = None

    @model_validator(mode="after")
    def _mounts_are_there(self) -> _PodSpec:
        volumes = {volume.name for volume in self.volumes}
        for mount in (mount for container in self.containers for mount in container.volumeMounts):
            if mount.name not in volumes:
                raise ValueError(f"volumeMounts name {mount.name!r}, which is none of volumes")
        return self


class _Template(Keys):
    metadata: _PodMetadata | None = None
    spec: _PodSpec


class _Head(Keys):
    rayStartParams: Labels
    template: _Template


class _Group(Keys):
    groupName: Text
    replicas: Count
    minReplicas: Count
    maxReplicas: Count
    numOfHosts: Annotated[int, Field(ge=1)] = 1
    rayStartParams: Labels
    template: _Template

    @model_validator(mode="after")
    def _has_the_hosts_of_its_slice(self) -> _Group:
        pod = self.template.spec
        limits = pod.containers[0].resources.limits
        if _CHIPS not in limits:
            return self
        lacking = [key for key in (_ACCELERATOR, _TOPOLOGY) if key not in pod.nodeSelector]
        if lacking:
            raise ValueError(f"a group with {_CHIPS} needs {' and '.join(lacking)} in its nodeSelector")
        topology = pod.nodeSelector[_TOPOLOGY]
        n_chips = prod(map(int, topology.split("x")))
        if self.numOfHosts * int(limits[_CHIPS]) != n_chips:
            raise ValueError(
                f"numOfHosts {self.numOfHosts} with {limits[_CHIPS]} chips each must have the {n_chips} of "
                f"{topology}"
            )
        return self


class _Spec(Keys):
    rayVersion: Text
    headGroupSpec: _Head
    workerGroupSpecs: Annotated[list[_Group], Field(min_length=1)]


class Manifest(Keys):
    """A whole file."""

    apiVersion: Literal["ray.io/v1"]
    kind: Literal["RayCluster"]
    metadata: _Metadata
    spec: _Spec
