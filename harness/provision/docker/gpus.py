"""GPUs of containers, and what the engine of this host needs for them."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from docker.types import DeviceRequest

from harness.provision.failures import ProvisionError

_HOOK = "nvidia-container-runtime-hook"
_CDI_GPU = "nvidia.com/gpu="
# Compute is CUDA, utility is nvidia-smi.
_CAPABILITIES = [["gpu", "compute", "utility"]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Toolkit:
    """How an engine can hand out GPUs.

    Attributes:
        has_runtime: through NVIDIA's runtime, or the hook that the engine itself starts.
        cdi: through the Container Device Interface, these names.
    """

    has_runtime: bool
    cdi: frozenset[str] = frozenset()


def toolkit_of(facts: Mapping[str, Any]) -> Toolkit:
    """What an engine has of NVIDIA's container toolkit.

    Args:
        facts: as its `info` tells them.
    """
    devices = facts.get("DiscoveredDevices") or ()
    return Toolkit(
        has_runtime="nvidia" in (facts.get("Runtimes") or {}) or shutil.which(_HOOK) is not None,
        cdi=frozenset(str(each["ID"]) for each in devices if str(each["ID"]).startswith(_CDI_GPU)),
    )


def lack_of_toolkit(toolkit: Toolkit, gpus: Sequence[str]) -> ProvisionError | None:
    """What containers lack to be given GPUs, if anything.

    Args:
        gpus: UUIDs of those that are to be given.
    """
    if toolkit.has_runtime or toolkit.cdi.issuperset(map(_name, gpus)):
        return None
    if toolkit.cdi:
        return ProvisionError(
            "docker: the engine must know GPUs by UUID where it has no runtime of NVIDIA's, got "
            f"{', '.join(sorted(toolkit.cdi))}",
            way_out="run `nvidia-ctk cdi generate --device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml` "
            "and start the engine anew, or use --provider local",
            field="cluster.device",
        )
    return ProvisionError(
        "docker: the engine must have NVIDIA's container toolkit to hand out GPUs, got neither its runtime "
        "nor devices of nvidia.com",
        way_out="install it, run `nvidia-ctk runtime configure --runtime=docker` and start the engine anew, "
        "or use --provider local",
        field="cluster.device",
    )


def device_arguments(own: Sequence[str], toolkit: Toolkit) -> dict[str, object]:
    """Arguments of the engine's `create` by which a container sees its own GPUs and no others.

    Args:
        own: their UUIDs, of which `lack_of_toolkit` finds nothing to lack.
    """
    if not own:
        return {}
    if toolkit.has_runtime:
        return {"device_requests": [DeviceRequest(device_ids=list(own), capabilities=_CAPABILITIES)]}
    return {"device_requests": [DeviceRequest(driver="cdi", device_ids=[_name(uuid) for uuid in own])]}


def _name(uuid: str) -> str:
    return f"{_CDI_GPU}{uuid}"
