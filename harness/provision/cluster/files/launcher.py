"""The keys of files for Ray's cluster launcher on Google Cloud, down to those of its machines.

Ray's own schema lets `node_config` hold anything. The keys here are those of Google's interfaces that a
cluster of ours can need:
https://cloud.google.com/compute/docs/reference/rest/v1/instances and
https://cloud.google.com/tpu/docs/reference/rest/v2alpha1/projects.locations.nodes
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

Text: TypeAlias = Annotated[str, Field(min_length=1)]
Count: TypeAlias = Annotated[int, Field(ge=0)]
Labels: TypeAlias = dict[str, str]


class Keys(BaseModel):
    """A mapping that may have these keys and no others."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Provider(Keys):
    type: Literal["gcp"]
    region: Text
    availability_zone: Text
    project_id: Text
    cache_stopped_nodes: bool = True
    use_internal_ips: bool = False


class _Auth(Keys):
    ssh_user: Text
    ssh_private_key: Text | None = None


class _Docker(Keys):
    head_image: Text
    worker_image: Text
    container_name: Text
    pull_before_run: bool = True
    run_options: list[Text]
    head_run_options: list[Text] = []
    worker_run_options: list[Text] = []


class _DiskParams(Keys):
    diskSizeGb: Annotated[int, Field(ge=10)]
    sourceImage: Text
    diskType: Text | None = None


class _Disk(Keys):
    boot: bool
    autoDelete: bool
    type: Literal["PERSISTENT", "SCRATCH"]
    initializeParams: _DiskParams


class _Guest(Keys):
    acceleratorType: Text
    acceleratorCount: Annotated[int, Field(ge=1)]


class _Item(Keys):
    key: Text
    value: str


class _Items(Keys):
    items: list[_Item]


class _Scheduling(Keys):
    onHostMaintenance: Literal["MIGRATE", "TERMINATE"] | None = None
    automaticRestart: bool | None = None
    preemptible: bool | None = None
    provisioningModel: Literal["STANDARD", "SPOT"] | None = None
    instanceTerminationAction: Literal["DELETE", "STOP"] | None = None


class _Interface(Keys):
    network: Text | None = None
    subnetwork: Text | None = None
    accessConfigs: list[Labels] = []


class _Account(Keys):
    email: Text
    scopes: list[Text]


class _Tags(Keys):
    items: list[Text]


class ComputeNode(Keys):
    """A machine of Compute Engine."""

    machineType: Text
    disks: Annotated[list[_Disk], Field(min_length=1)]
    guestAccelerators: list[_Guest] = []
    metadata: _Items | None = None
    scheduling: _Scheduling | None = None
    networkInterfaces: list[_Interface] | None = None
    serviceAccounts: list[_Account] | None = None
    labels: Labels = {}
    tags: _Tags | None = None
    minCpuPlatform: Text | None = None

    @model_validator(mode="after")
    def _stays(self) -> ComputeNode:
        stays = self.scheduling is not None and self.scheduling.onHostMaintenance == "TERMINATE"
        if self.guestAccelerators and not stays:
            raise ValueError("a machine with guestAccelerators needs scheduling.onHostMaintenance TERMINATE")
        return self


class _AcceleratorConfig(Keys):
    type: Literal["V4", "V5P", "V5LITE_POD", "V6E"]
    topology: Annotated[str, Field(pattern=r"^\d+x\d+(x\d+)?$")]


class _TpuScheduling(Keys):
    preemptible: bool | None = None
    reserved: bool | None = None
    spot: bool | None = None


class _TpuNetwork(Keys):
    network: Text | None = None
    subnetwork: Text | None = None
    enableExternalIps: bool | None = None


class TpuNode(Keys):
    """A TPU slice, of however many hosts."""

    acceleratorType: Annotated[str, Field(pattern=r"^(v|tpu)\d+[a-z]*-\d+$")] | None = None
    acceleratorConfig: _AcceleratorConfig | None = None
    runtimeVersion: Text
    schedulingConfig: _TpuScheduling | None = None
    networkConfig: _TpuNetwork | None = None
    serviceAccount: _Account | None = None
    metadata: Labels = {}
    labels: Labels = {}
    tags: list[Text] = []

    @model_validator(mode="after")
    def _is_one_slice(self) -> TpuNode:
        if (self.acceleratorType is None) == (self.acceleratorConfig is None):
            raise ValueError("needs one of acceleratorType and acceleratorConfig")
        return self


def _kind(node: object) -> str:
    return "compute" if isinstance(node, dict) and not {"machineType", "disks"}.isdisjoint(node) else "tpu"


class _NodeType(Keys):
    resources: dict[Literal["CPU", "GPU", "TPU"], Count]
    min_workers: Count = 0
    max_workers: Count | None = None
    node_config: Annotated[
        Annotated[ComputeNode, Tag("compute")] | Annotated[TpuNode, Tag("tpu")], Discriminator(_kind)
    ]


class LauncherFile(Keys):
    """A whole file."""

    metadata: dict[str, object] = {}
    cluster_name: Text
    max_workers: Count
    upscaling_speed: float = 1.0
    idle_timeout_minutes: Count
    provider: _Provider
    auth: _Auth
    docker: _Docker
    file_mounts: Labels
    head_node_type: Text
    available_node_types: dict[str, _NodeType]
    initialization_commands: list[str]
    setup_commands: list[str]
    head_setup_commands: list[str]
    worker_setup_commands: list[str]
    head_start_ray_commands: list[str]
    worker_start_ray_commands: list[str]
