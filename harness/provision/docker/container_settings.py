"""Settings of a container: what it may use, see and write."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from docker.models.networks import Network
from docker.types import LogConfig, Mount

from harness.provision.docker.leftovers import labels_of

CONTAINER_UID = 10001


def shared_group() -> int:
    """Group that containers join: this user's own, or, if the driver may change owners, the containers'."""
    return CONTAINER_UID if os.geteuid() == 0 else os.getegid()


def share(folder: Path) -> None:
    """Let containers write into a folder, and the driver remove their files.

    New files inherit the group, and containers run with a umask that keeps the group's rights.
    """
    os.chown(folder, -1, shared_group())
    folder.chmod(0o2775)


def share_secret(path: Path) -> None:
    """Let containers read a file that no other user may read."""
    os.chown(path, -1, shared_group())
    path.chmod(0o440)


_TOKEN = "/run/stratbench/token"  # noqa: S105 - where it lies
_RAY_FOLDER = "/tmp/ray"  # noqa: S108 - in the container's own /tmp
_SHM_BYTES = 256 * 2**20
# NCCL exchanges data through it if GPUs cannot reach each other; the size is that of its guide:
# https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
_SHM_WITH_DEVICES_BYTES = 2**30
_MAX_PROCESSES = 4096
_LOG = LogConfig(type="json-file", config={"max-size": "10m", "max-file": "1"})
_TOP_LEVEL = ("bin", "dev", "etc", "lib", "opt", "proc", "run", "sbin", "sys", "tmp", "usr", "var")
_PREFIXES = ("/usr", "/usr/local", "/opt/stratbench")
"""Prefixes of programs and libraries; the last is the virtual environment of `../image/environment`."""
_OF_IMAGE = frozenset(
    {
        Path("/"),
        *(Path("/", name) for name in _TOP_LEVEL),
        *map(Path, _PREFIXES),
        *(Path(prefix, name) for prefix in _PREFIXES for name in ("bin", "include", "lib", "lib64", "share")),
    }
)
# A worker needs no privilege at all.
_CONFINED: Mapping[str, object] = {
    "user": f"{CONTAINER_UID}:{CONTAINER_UID}",
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges:true"],
    "init": True,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlace:
    """Settings that all containers of a run share.

    Attributes:
        image: id of the image, so that all containers have the same even if its name is moved.
        folder: temporary folder of the run on this host. token: file of Ray's token in it.
        reads, writes: folders of this host that workers see at the same path.
        current: the user's working directory, to which their paths are relative; empty in workers unless it
            is shared; None without user paths.
        environment: variables of every container.
    """

    run_id: str
    image: str
    folder: Path
    token: Path
    reads: tuple[Path, ...]
    writes: tuple[Path, ...]
    current: Path | None
    environment: Mapping[str, str]

    @property
    def scratch(self) -> Path:
        return self.folder / "scratch"

    def name(self, role: str) -> str:
        return f"stratbench-{self.run_id}-{role}"

    def ray_folder(self, role: str) -> Path:
        return self.folder / "ray" / role


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerLimits:
    """Limits of a container; None is everything that the host has.

    Attributes:
        devices: UUIDs of its GPUs. arguments: arguments of the engine's `create` that assign these GPUs.
    """

    cores: tuple[int, ...] | None = None
    memory_bytes: int | None = None
    devices: tuple[str, ...] = ()
    arguments: Mapping[str, object] = field(default_factory=dict)


def is_of_image(folder: Path) -> bool:
    """True if the image has its own folder at a path, which no mount may hide."""
    return folder in _OF_IMAGE


def create_arguments(
    place: RunPlace, role: str, limits: ContainerLimits, network: Network, folders: Mapping[Path, str]
) -> dict[str, Any]:
    """Arguments of the engine's `create`: resources, mounts and permissions of a container.

    Args:
        folders: folder of this host → `ro` or `rw`.
    """
    return {
        "name": place.name(role),
        "labels": labels_of(place.run_id, role),
        "environment": {
            **place.environment,
            "RAY_AUTH_TOKEN_PATH": _TOKEN,
            "HOME": "/tmp",  # noqa: S108 - the one folder that anybody may write to
        },
        "network": network.id,
        "shm_size": _SHM_WITH_DEVICES_BYTES if limits.devices else _SHM_BYTES,
        "pids_limit": _MAX_PROCESSES,
        "cpuset_cpus": None if limits.cores is None else ",".join(map(str, limits.cores)),
        "mem_limit": limits.memory_bytes,
        "memswap_limit": limits.memory_bytes,
        "log_config": _LOG,
        "detach": True,
        **_file_system(place, role, folders),
        **_CONFINED,
        **limits.arguments,
    }


def _file_system(place: RunPlace, role: str, folders: Mapping[Path, str]) -> dict[str, object]:
    ray_folder = place.ray_folder(role)
    ray_folder.mkdir(parents=True, exist_ok=True)
    share(ray_folder)
    # The short form of a bind joins its parts by colons, which a path may contain.
    mounts = [
        *(_bind(path, str(path), read_only=mode == "ro") for path, mode in folders.items()),
        _bind(ray_folder, _RAY_FOLDER, read_only=False),
        _bind(place.token, _TOKEN, read_only=True),
    ]
    in_memory = {"/tmp": "rw,nosuid,nodev,mode=1777"}  # noqa: S108 - the container's own
    current = place.current
    if current is not None and not is_of_image(current) and not any(map(current.is_relative_to, folders)):
        in_memory[str(current)] = "ro,size=4k"
    return {"mounts": mounts, "tmpfs": in_memory, "read_only": True, "group_add": [str(shared_group())]}


def _bind(source: Path, target: str, *, read_only: bool) -> Mount:
    return Mount(target, str(source), type="bind", read_only=read_only)
