"""The containers and networks of one run: how each is made, and what it may do."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError
from docker.models.containers import Container
from docker.models.networks import Network
from docker.types import LogConfig

from harness.provision.docker.engine import GONE, refused
from harness.provision.docker.leftovers import labels_of
from harness.provision.docker.shared_folders import CONTAINER_UID, share, shared_group
from harness.provision.failures import ProvisionError

GCS_PORT = 6379
CLIENT_PORT = 10001
_TOKEN = "/run/stratbench/token"  # noqa: S105 - where it lies
_RAY_FOLDER = "/tmp/ray"  # noqa: S108 - in the container's own /tmp
_OBJECT_STORE_BYTES = 100 * 2**20
_SHM_BYTES = 256 * 2**20
# NCCL exchanges through it where GPUs do not reach each other, and its guide has this figure:
# https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
_SHM_WITH_DEVICES_BYTES = 2**30
_MAX_PROCESSES = 4096
_LOG = LogConfig(type="json-file", config={"max-size": "10m", "max-file": "1"})
_ADDRESS_S = 10.0
_OF_IMAGE = frozenset(
    {"", "bin", "dev", "etc", "lib", "opt", "proc", "run", "sbin", "sys", "tmp", "usr", "var"}
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
    """What the containers of a run have in common.

    Attributes:
        image: its id, so that all are of one even if its name moves on.
        folder: the run's private one on this host. token: file of Ray's token in it.
        reads, writes: folders of this host that workers see at the same path.
        current: folder to which a user's paths are relative, None where there are none; workers see it,
            if need be empty.
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
        """A folder that all workers share."""
        return self.folder / "scratch"

    def name(self, role: str) -> str:
        """What a container or network is called."""
        return f"stratbench-{self.run_id}-{role}"

    def ray_folder(self, role: str) -> Path:
        """Where the files of a container's Ray node lie on this host."""
        return self.folder / "ray" / role


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerLimits:
    """What a container may use; None is all there is.

    Attributes:
        devices: UUIDs of its GPUs. arguments: of the engine's `create`, by which it gets them.
    """

    cores: tuple[int, ...] | None = None
    memory_bytes: int | None = None
    devices: tuple[str, ...] = ()
    arguments: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Networks:
    """The two networks of a run: Ray's, and the one of what strategies send."""

    control: Network
    data: Network


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerNode:
    """A running container with a Ray node in it.

    Attributes:
        data_address: where other workers reach it; None for the head, which has no business there.
    """

    role: str
    container: Container
    control_address: str
    data_address: str | None


@contextmanager
def networks(client: docker.DockerClient, place: RunPlace) -> Iterator[Networks]:
    """Make a run's networks; they are gone when the context ends, for which nobody may be in them.

    Raises:
        ProvisionError: the engine cannot.
    """
    created: list[Network] = []
    try:
        for role, internal in (("control", False), ("data", True)):
            try:
                created.append(
                    client.networks.create(
                        place.name(role),
                        driver="bridge",
                        internal=internal,
                        check_duplicate=True,
                        labels=labels_of(place.run_id, role),
                    )
                )
            except APIError as error:
                raise refused(error, f"making the network {place.name(role)}") from error
        yield Networks(control=created[0], data=created[1])
    finally:
        for network in created:
            with suppress(*GONE):
                network.remove()


def start_head(client: docker.DockerClient, place: RunPlace, between: Networks) -> ContainerNode:
    """Start Ray's head, which runs no work and is reached on the control network only.

    Raises:
        ProvisionError: the engine cannot.
    """
    command = ["--head", f"--port={GCS_PORT}", f"--ray-client-server-port={CLIENT_PORT}", "--num-cpus=0"]
    command += ["--include-dashboard=false"]
    return _start(client, place, "head", command, ContainerLimits(), [between.control], folders={})


def start_worker(
    client: docker.DockerClient,
    place: RunPlace,
    between: Networks,
    worker: int,
    head: ContainerNode,
    limits: ContainerLimits,
    resource: str,
) -> ContainerNode:
    """Start the container of one worker, a node of the head's cluster.

    Args:
        resource: which it has alone, by which Ray places an actor there.

    Raises:
        ProvisionError: the engine cannot.
    """
    command = [f"--address={head.control_address}:{GCS_PORT}", "--num-cpus=1"]
    command += [f'--resources={{"{resource}": 1}}']
    folders = dict.fromkeys(place.reads, "ro") | dict.fromkeys(place.writes, "rw")
    both = [between.control, between.data]
    return _start(client, place, f"worker-{worker}", command, limits, both, folders=folders)


def is_of_image(folder: Path) -> bool:
    """Whether containers have a folder of their own in that place, which no other may cover."""
    return folder.parent == folder.parent.parent and folder.name in _OF_IMAGE


def remove(container: Container) -> None:
    """End a container, whatever state it is in, and remove it."""
    with suppress(*GONE):
        container.remove(force=True, v=True)


def last_lines(container: Container, n_lines: int = 60) -> Sequence[str]:
    """The end of a container's output; none when it cannot be read."""
    try:
        text: bytes = container.logs(tail=n_lines)
    except GONE:
        return ()
    return text.decode(errors="replace").splitlines()


def _start(
    client: docker.DockerClient,
    place: RunPlace,
    role: str,
    ray_arguments: Sequence[str],
    limits: ContainerLimits,
    between: Sequence[Network],
    *,
    folders: Mapping[Path, str],
) -> ContainerNode:
    container = _created(client, place, role, ray_arguments, limits, between[0], folders)
    try:
        for network in between[1:]:
            network.connect(container)
        container.start()
        addresses = [_address(container, network) for network in between]
    except APIError as error:
        remove(container)
        raise refused(error, f"starting the container {place.name(role)}") from error
    except BaseException:
        remove(container)
        raise
    data_address = addresses[1] if len(addresses) > 1 else None
    return ContainerNode(
        role=role, container=container, control_address=addresses[0], data_address=data_address
    )


def _created(
    client: docker.DockerClient,
    place: RunPlace,
    role: str,
    ray_arguments: Sequence[str],
    limits: ContainerLimits,
    network: Network,
    folders: Mapping[Path, str],
) -> Container:
    # The group of shared folders keeps its rights on what is made in them.
    ray = 'umask 002; exec ray start --block --disable-usage-stats --object-store-memory=%d "$@"'
    arguments: dict[str, Any] = {
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
    try:
        return client.containers.create(
            place.image, ["sh", "-c", ray % _OBJECT_STORE_BYTES, "ray", *ray_arguments], **arguments
        )
    except APIError as error:
        raise refused(error, f"making the container {place.name(role)}") from error


def _file_system(place: RunPlace, role: str, folders: Mapping[Path, str]) -> dict[str, object]:
    """What a container sees of this host's folders, and where it may write."""
    ray_folder = place.ray_folder(role)
    ray_folder.mkdir(parents=True, exist_ok=True)
    share(ray_folder)
    binds = {str(path): {"bind": str(path), "mode": mode} for path, mode in folders.items()}
    binds[str(ray_folder)] = {"bind": _RAY_FOLDER, "mode": "rw"}
    binds[str(place.token)] = {"bind": _TOKEN, "mode": "ro"}
    in_memory = {"/tmp": "rw,nosuid,nodev,mode=1777"}  # noqa: S108 - the container's own
    current = place.current
    if current is not None and not is_of_image(current) and not any(map(current.is_relative_to, folders)):
        in_memory[str(current)] = "ro,size=4k"
    return {"volumes": binds, "tmpfs": in_memory, "read_only": True, "group_add": [str(shared_group())]}


def _address(container: Container, network: Network) -> str:
    """Where a container is reached in a network; it may take a moment until it has an address."""
    limit_s = time.monotonic() + _ADDRESS_S
    while True:
        container.reload()
        known = container.attrs["NetworkSettings"]["Networks"].values()
        address = next((each["IPAddress"] for each in known if each["NetworkID"] == network.id), "")
        if address:
            return str(address)
        if container.status not in ("created", "running") or time.monotonic() > limit_s:
            raise _no_address(container, network)
        time.sleep(0.02)


def _no_address(container: Container, network: Network) -> ProvisionError:
    error = ProvisionError(
        f"docker: the container {container.name} must have an address in {network.name} within "
        f"{_ADDRESS_S:g} s, got status {container.status}; --debug shows the end of its log"
    )
    lines = last_lines(container)
    if lines:
        error.add_note("last lines of its log:\n" + "\n".join(lines))
    return error
