"""The `docker` provider: a container for each worker on this host, a node of the run's own Ray cluster."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docker
from docker.models.images import Image

from harness.cluster import ClusterShape
from harness.provision.accelerators import devices_of_workers
from harness.provision.docker import containers, leftovers
from harness.provision.docker.container_settings import (
    ContainerLimits,
    RunPlace,
    is_of_image,
    share,
    share_secret,
)
from harness.provision.docker.engine import (
    device_arguments,
    engine,
    lack_of_toolkit,
    require_room,
    toolkit_of,
    worker_image,
)
from harness.provision.docker.hosts import ContainerHosts, log_of_host
from harness.provision.failures import ProvisionError
from harness.provision.hosts import WorkerSetup
from harness.provision.local import core_sets
from harness.provision.protocols import USUAL_START, ClusterFacts, StartOptions
from harness.provision.ray.settings import NODE_VARIABLES, chatter_in, ray_environment, write_token
from harness.provision.temporary_folder import reap, run_folder
from harness.provision.worker_environment import process_variables

if TYPE_CHECKING:
    from harness.provision.ray.pool import RayCluster

_IN_CONTAINER = Path("/tmp")  # noqa: S108 - of each container alone, and gone with it


def require(shape: ClusterShape) -> None:
    """Check that the engine answers, and that the image, devices and memory are there."""
    with engine() as client:
        _image_and_limits(client, shape)


def _available(facts: Mapping[str, Any]) -> list[int]:
    """Cores that containers may use, by the result of the engine's `info`."""
    return sorted(os.sched_getaffinity(0))[: int(facts["NCPU"])]


@contextmanager
def start(
    shape: ClusterShape,
    run_id: str,
    log_dir: Path,
    options: StartOptions = USUAL_START,
    *,
    reads: Sequence[Path] = (),
    writes: Sequence[Path] = (),
) -> Iterator["RayCluster"]:
    """Start a container for each worker, on networks of the run's own."""
    started_s = time.monotonic()
    _refuse_system_folders(reads)
    log_dir.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        client = stack.enter_context(engine())
        image, limits = _image_and_limits(client, shape)
        n_cores = len(_available(client.info()))
        leftovers.reap(client)
        reap()
        folder = stack.enter_context(run_folder())
        place = _place(run_id, str(image.id), folder, reads, [log_dir, *writes])
        stack.enter_context(ray_environment(folder, place.token))
        stack.enter_context(chatter_in(log_dir / f"ray-{run_id}.log"))
        hosts = stack.enter_context(_running(client, place, limits, log_dir))

        from harness.provision.ray.pool import RayCluster

        setups = [
            WorkerSetup(
                resources={"num_cpus": 0},
                environment=process_variables(folder, shape.hardware, _IN_CONTAINER, limits[worker].devices),
                log=log_dir / f"fork-server-{worker}.log",
                host_log=log_of_host(log_dir, f"worker-{worker}"),
                folder=place.current,
                has_probe=True,
            )
            for worker in range(shape.workers)
        ]
        cluster = RayCluster(
            setups,
            hosts=hosts,
            scratch=place.scratch,
            facts=lambda: ClusterFacts(n_cores=n_cores, exposed=False, image_digest=str(image.id)),
            started_s=started_s,
            options=options,
        )
        stack.callback(cluster.stop)
        yield cluster


def _image_and_limits(
    client: docker.DockerClient, shape: ClusterShape
) -> tuple[Image, list[ContainerLimits]]:
    facts = client.info()
    devices = devices_of_workers(shape)
    toolkit = toolkit_of(facts)
    lacking = lack_of_toolkit(toolkit, [uuid for own in devices for uuid in own])
    if lacking is not None:
        raise lacking
    image = worker_image(client, shape.image, shape.hardware)
    require_room(facts, shape)
    cores = core_sets(_available(facts), shape.workers, shape.cores_per_worker)
    return image, [
        ContainerLimits(
            cores=cores[worker],
            memory_bytes=shape.memory_bytes,
            devices=own,
            arguments=device_arguments(own, toolkit),
        )
        for worker, own in enumerate(devices)
    ]


def _place(run_id: str, image: str, folder: Path, reads: Sequence[Path], writes: Sequence[Path]) -> RunPlace:
    place = RunPlace(
        run_id=run_id,
        image=image,
        folder=folder,
        token=write_token(folder),
        reads=tuple(reads),
        writes=(folder / "scratch", *(path.absolute() for path in writes)),
        current=Path.cwd() if reads else None,
        environment=NODE_VARIABLES,
    )
    place.scratch.mkdir()
    for shared in place.writes:
        share(shared)
    share_secret(place.token)
    return place


@contextmanager
def _running(
    client: docker.DockerClient, place: RunPlace, limits: Sequence[ContainerLimits], log_dir: Path
) -> Iterator[ContainerHosts]:
    with ExitStack() as stack:
        stack.enter_context(leftovers.removed_after_driver(place.run_id))
        between = stack.enter_context(containers.networks(client, place))
        hosts = ContainerHosts(client, place, between, limits, log_dir)
        stack.callback(hosts.stop)
        hosts.start()
        yield hosts


def _refuse_system_folders(folders: Sequence[Path]) -> None:
    for folder in folders:
        if is_of_image(folder):
            raise ProvisionError(
                "docker: a user's file is mounted with its folder, which must hold nothing of the image, got "
                f"{folder}, where their image has files; move the file into a folder below"
            )
