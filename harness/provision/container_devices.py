"""How containers are given accelerators, and what the engine of this host needs for it."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker.types import DeviceRequest

from harness.provision.base import Device
from harness.provision.failures import ProvisionError

_HOOK = "nvidia-container-runtime-hook"
_CDI_GPU = "nvidia.com/gpu="
# Compute is CUDA, utility is nvidia-smi.
_CAPABILITIES = [["gpu", "compute", "utility"]]
_VFIO = "/dev/vfio/vfio"  # opens the groups beside it


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


def lack_of_toolkit(toolkit: Toolkit) -> ProvisionError | None:
    """What containers lack to be given GPUs, if anything."""
    if toolkit.has_runtime or toolkit.cdi:
        return None
    return ProvisionError(
        "docker: the engine must have NVIDIA's container toolkit to hand out GPUs, got neither its runtime "
        "nor devices of nvidia.com",
        way_out="install it, run `nvidia-ctk runtime configure --runtime=docker` and start the engine anew, "
        "or use --provider local",
        field="cluster.device",
    )


def device_arguments(device: Device, own: Sequence[str], toolkit: Toolkit) -> dict[str, object]:
    """Arguments of the engine's `create` by which a container sees its own devices and no others.

    Args:
        own: UUIDs of GPUs, or device nodes of TPUs.
    """
    if device == "gpu":
        by_name = [f"{_CDI_GPU}{uuid}" for uuid in own]
        if not toolkit.has_runtime and toolkit.cdi.issuperset(by_name):
            return {"device_requests": [DeviceRequest(driver="cdi", device_ids=by_name)]}
        return {"device_requests": [DeviceRequest(device_ids=list(own), capabilities=_CAPABILITIES)]}
    if device == "tpu":
        nodes = [*own, *([_VFIO] if any(Path(node).parent == Path(_VFIO).parent for node in own) else [])]
        return {"devices": [f"{node}:{node}:rw" for node in nodes]}
    return {}
