"""Docker engine of this host: connection, worker images, room, and GPUs for containers."""

import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound
from docker.models.images import Image
from docker.types import DeviceRequest
from docker.utils import kwargs_from_env

from harness.cluster import ClusterShape, Hardware
from harness.errors import first_line
from harness.provision.failures import ProvisionError
from harness.provision.source_hash import source_hash, version

IMAGE = "stratbench-worker:dev"
SOURCE_LABEL = "io.stratbench.source"
TARGET_LABEL = "io.stratbench.target"
VERSION_LABEL = "org.opencontainers.image.version"
GONE = (DockerException, requests.RequestException, OSError)
"""Errors of calls to an engine that refuses or has ended."""
_DEFAULT_ADDRESS = "unix:///var/run/docker.sock"
_CALL_S = 60


@contextmanager
def engine() -> Iterator[docker.DockerClient]:
    """Connect to the engine of the environment, by default that of this host.

    Raises:
        ProvisionError: no engine answers, it may not be used, or it is another host's.
    """
    settings = _settings()
    address = settings.setdefault("base_url", _DEFAULT_ADDRESS)
    # Workers use folders of the driver's file system.
    if not address.startswith(("unix:", "http+unix:")):
        raise ProvisionError(
            f"docker: the engine must be this host's own, got {address}",
            way_out="unset DOCKER_HOST, or start the run on that host",
        )
    try:
        client = docker.DockerClient(timeout=_CALL_S, **settings)
    except (*GONE, ValueError) as error:
        raise _unreachable(address) from error
    try:
        yield client
    finally:
        client.close()


def worker_image(client: docker.DockerClient, name: str | None, device: Hardware = "cpu") -> Image:
    """Find a worker image with the same code as this driver.

    Args:
        name: name of the image; None for the one that `make image` builds for the device.
        device: device whose libraries the image must have.
    Raises:
        ProvisionError: there is none, it has other code, or it lacks the device's libraries.
    """
    target = "" if device == "cpu" else f" TARGET={device}"
    name = name or (f"{IMAGE}-{device}" if target else IMAGE)
    try:
        image = client.images.get(name)
    except ImageNotFound:
        raise ProvisionError(
            f"docker: the image {name} (stratbench {version()}) does not exist",
            way_out=f"run `make image{target}`",
            field="cluster.image",
        ) from None
    source, wanted = image.labels.get(SOURCE_LABEL, ""), source_hash()
    if source != wanted:
        raise ProvisionError(
            f"docker: the image {name} must be of the code that runs here, stratbench {version()} (source "
            f"{wanted[:12]}), got {image.labels.get(VERSION_LABEL) or 'no version'} (source "
            f"{source[:12] or 'unknown'})",
            way_out=f"run `make image{target}`",
            field="cluster.image",
        )
    made_for = image.labels.get(TARGET_LABEL, "cpu")
    if target and made_for != device:
        raise ProvisionError(
            f"docker: the image {name} must have the libraries of device {device}, got the target {made_for}",
            way_out=f"run `make image{target}` and drop cluster.image",
            field="cluster.image",
        )
    return image


def require_room(facts: Mapping[str, Any], shape: ClusterShape) -> None:
    """Require the workers' memory on this host.

    Args:
        facts: result of the engine's `info`.
    Raises:
        ProvisionError: it has too little memory.
    """
    total_bytes = int(facts["MemTotal"])
    wanted_bytes = shape.workers * (shape.memory_bytes or 0)
    if wanted_bytes > total_bytes:
        raise ProvisionError(
            f"{shape.workers} containers need {wanted_bytes / 2**30:.1f} GiB of memory, got "
            f"{total_bytes / 2**30:.1f} GiB on this host; lower it, or cluster.workers",
            field="cluster.memory_per_worker",
        )


def refused(error: APIError, what: str) -> ProvisionError:
    """Describe a refused request in one line."""
    explanation = " ".join(str(error.explanation or error).split())
    way_out = "; remove it or end its run" if error.status_code == 409 else ""
    return ProvisionError(f"docker: {what} failed: {explanation[:300]}{way_out}")


def _settings() -> dict[str, Any]:
    try:
        return dict(kwargs_from_env())
    except (DockerException, OSError) as error:
        raise ProvisionError(
            f"docker: cannot read the certificates in DOCKER_CERT_PATH: {first_line(str(error))}",
            way_out="correct it, or unset DOCKER_TLS_VERIFY and DOCKER_CERT_PATH",
        ) from error


def _unreachable(address: str) -> ProvisionError:
    path = Path(urlsplit(address).path)
    try:
        facts = path.stat()
    except PermissionError:
        return _forbidden(path, "be let into its folder")
    except OSError:
        what = "no such file"
    else:
        if not os.access(path, os.R_OK | os.W_OK):
            return _forbidden(path, f"join its group ({facts.st_gid})")
        what = "no answer" if stat.S_ISSOCK(facts.st_mode) else "not a socket"
    return ProvisionError(
        f"docker: no engine answers at {address} ({what})",
        way_out="start one, or use --provider local",
    )


def _forbidden(path: Path, way_out: str) -> ProvisionError:
    return ProvisionError(
        f"docker: permission denied for {path}",
        way_out=f"{way_out}, or run as root",
    )


_HOOK = "nvidia-container-runtime-hook"
_CDI_GPU = "nvidia.com/gpu="
# Compute is CUDA, utility is nvidia-smi.
_CAPABILITIES = [["gpu", "compute", "utility"]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Toolkit:
    """Methods by which an engine can give GPUs to containers.

    Attributes:
        has_runtime: True if NVIDIA's runtime, or the hook that the engine itself starts, can be used.
        cdi: names of devices of the Container Device Interface.
    """

    has_runtime: bool
    cdi: frozenset[str] = frozenset()


def toolkit_of(facts: Mapping[str, Any]) -> Toolkit:
    """Find NVIDIA's container toolkit in an engine.

    Args:
        facts: result of the engine's `info`.
    """
    devices = facts.get("DiscoveredDevices") or ()
    return Toolkit(
        has_runtime="nvidia" in (facts.get("Runtimes") or {}) or shutil.which(_HOOK) is not None,
        cdi=frozenset(str(device["ID"]) for device in devices if str(device["ID"]).startswith(_CDI_GPU)),
    )


def lack_of_toolkit(toolkit: Toolkit, gpus: Sequence[str]) -> ProvisionError | None:
    """Error of an engine that cannot give GPUs to containers, else None.

    Args:
        gpus: UUIDs of the needed GPUs.
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
        "docker: the engine has no NVIDIA container toolkit for GPUs: neither its runtime nor devices of "
        "nvidia.com",
        way_out="install it, run `nvidia-ctk runtime configure --runtime=docker` and start the engine anew, "
        "or use --provider local",
        field="cluster.device",
    )


def device_arguments(own: Sequence[str], toolkit: Toolkit) -> dict[str, object]:
    """Arguments of the engine's `create` that show a container its own GPUs and no others.

    Args:
        own: UUIDs of its GPUs, for which `lack_of_toolkit` returned None.
    """
    if not own:
        return {}
    if toolkit.has_runtime:
        return {"device_requests": [DeviceRequest(device_ids=list(own), capabilities=_CAPABILITIES)]}
    return {"device_requests": [DeviceRequest(driver="cdi", device_ids=[_name(uuid) for uuid in own])]}


def _name(uuid: str) -> str:
    return f"{_CDI_GPU}{uuid}"
