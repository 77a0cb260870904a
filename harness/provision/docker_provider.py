"""The `docker` provider: a container for each worker on this host, a node of the run's own Ray cluster."""

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import docker
from docker.models.images import Image

from harness import links
from harness.provision import containers, leftovers, link_shaping
from harness.provision.base import ClusterShape
from harness.provision.container_devices import device_arguments, lack_of_toolkit, toolkit_of
from harness.provision.container_events import ContainerEvents
from harness.provision.containers import CLIENT_PORT, Limits, Networks, Node, RunPlace
from harness.provision.devices import host_devices, seen_by_worker, shared_out
from harness.provision.engine import GONE, engine, require_room, worker_image
from harness.provision.failures import HOST_LOG, ProvisionError
from harness.provision.local import core_sets
from harness.provision.process_environment import WORKER_IMPORTS, process_variables
from harness.provision.ray_settings import NODE_VARIABLES, chatter_in, ray_environment, write_token
from harness.provision.reaper import reap, run_folder
from harness.provision.shared_folders import share, share_secret
from harness.worker.replies import Died, Silent

if TYPE_CHECKING:
    from harness.provision.ray_cluster import RayCluster

_IN_CONTAINER = Path("/tmp")  # noqa: S108 - of each container alone, and gone with it
_ENGINE_BACK_S = 30.0
_POLL_S = 0.2


class DockerProvider:
    """Workers in containers of this host's engine.

    Args:
        imports: what each worker's zygote imports before it forks.
        preload_s: how long it may take from a container's start to that.
    """

    name = "docker"

    def __init__(self, *, imports: Sequence[str] = WORKER_IMPORTS, preload_s: float = 120.0) -> None:
        self._imports = tuple(imports)
        self._preload_s = preload_s

    @contextmanager
    def start(
        self,
        shape: ClusterShape,
        run_id: str,
        log_dir: Path,
        *,
        reads: Sequence[Path] = (),
        writes: Sequence[Path] = (),
    ) -> Iterator["RayCluster"]:
        """Bring up containers; nothing of them is left when the context ends. See `Provider.start`.

        Raises:
            ProvisionError: no engine, no image, too little room, or something does not start.
        """
        started_s = time.monotonic()
        _refuse_system_folders(reads)
        log_dir.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            client = stack.enter_context(engine())
            image, limits = _found(client, shape)
            leftovers.reap(client)
            reap()
            folder = stack.enter_context(run_folder())
            place = _place(run_id, str(image.id), folder, reads, [log_dir, *writes])
            stack.enter_context(ray_environment(folder, place.token))
            stack.enter_context(chatter_in(log_dir / f"ray-{run_id}.log"))
            hosts = stack.enter_context(_running(client, place, limits, log_dir))

            from harness.provision.ray_actors import Preload, Seat
            from harness.provision.ray_cluster import RayCluster

            seats = [
                Seat(
                    resources={"num_cpus": 0, "resources": {containers.worker_resource(worker): 1}},
                    cores=None,  # the container has no others
                    environment={
                        **process_variables(folder, shape.device, _IN_CONTAINER),
                        # Ray hides GPUs from actors that it has not given them to.
                        **seen_by_worker(shape.device, limits[worker].devices),
                    },
                    log=log_dir / f"zygote-{worker}.log",
                    host_log=log_of_host(log_dir, f"worker-{worker}"),
                    folder=place.current,
                    has_door=True,
                )
                for worker in range(shape.workers)
            ]
            cluster = RayCluster(
                seats,
                hosts=hosts,
                scratch=place.scratch,
                pinned=True,
                isolated=True,
                started_s=started_s,
                preload=Preload(imports=self._imports, wait_s=self._preload_s),
            )
            stack.callback(cluster.stop)
            yield cluster


def _found(client: docker.DockerClient, shape: ClusterShape) -> tuple[Image, list[Limits]]:
    """The image of workers, and what each of their containers may use of this host.

    Raises:
        ProvisionError: no such image, too little room, or no such devices.
    """
    facts = client.info()
    devices = shared_out(host_devices(), shape)
    toolkit = toolkit_of(facts)
    lacking = lack_of_toolkit(toolkit) if shape.device == "gpu" else None
    if lacking is not None:
        raise lacking
    image = worker_image(client, shape.image, shape.device)
    require_room(facts, shape)
    cores = core_sets(sorted(os.sched_getaffinity(0)), shape.workers, shape.cores_per_worker)
    return image, [
        Limits(
            cores=cores[worker],
            memory_bytes=shape.memory_bytes,
            devices=own,
            arguments=device_arguments(shape.device, own, toolkit),
        )
        for worker, own in enumerate(devices)
    ]


def _place(run_id: str, image: str, folder: Path, reads: Sequence[Path], writes: Sequence[Path]) -> RunPlace:
    """What the containers of a run share; those of its folders that they write to are open to them."""
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
    client: docker.DockerClient, place: RunPlace, limits: Sequence[Limits], log_dir: Path
) -> Iterator["_Containers"]:
    """Containers of all workers, connected to; nothing is left when the context ends."""
    with ExitStack() as stack:
        stack.enter_context(leftovers.guarded(place.run_id))
        between = stack.enter_context(containers.networks(client, place))
        hosts = _Containers(client, place, between, limits, log_dir)
        stack.callback(hosts.stop)
        hosts.start()
        yield hosts


class _Containers:
    """The containers of a run as `hosts.Hosts`."""

    def __init__(
        self,
        client: docker.DockerClient,
        place: RunPlace,
        between: Networks,
        limits: Sequence[Limits],
        log_dir: Path,
    ) -> None:
        self._client = client
        self._place = place
        self._between = between
        self._log_dir = log_dir
        self._limits = limits
        self._head: Node | None = None
        self._workers: dict[int, Node] = {}
        self._condemned: set[int] = set()
        self._is_connected = False
        self._events: ContainerEvents | None = None
        self._limited_links: link_shaping.Limited = {}

    def start(self) -> None:
        """Start the head, then all workers at the same time, and connect to the head."""
        from harness.provision import ray_client

        self._events = ContainerEvents(self._client, self._place.run_id)
        self._head = containers.start_head(self._client, self._place, self._between)
        self._start_workers(range(len(self._limits)))
        ray_client.connect(f"{self._head.control_address}:{CLIENT_PORT}", is_up=self.is_up)
        self._is_connected = True

    def stop(self) -> None:
        """Disconnect, keep the logs, and remove the containers."""
        import ray

        if self._is_connected:
            self._is_connected = False
            # A head that is gone does not answer to a good-bye.
            with suppress(Exception):
                ray.shutdown()
        if self._events is not None:
            self._events.close()
        nodes = [*self._workers.values(), *([] if self._head is None else [self._head])]
        self._workers, self._head = {}, None
        self._remove(nodes)

    @property
    def addresses(self) -> Sequence[str]:
        return [self._workers[worker].data_address or "" for worker in sorted(self._workers)]

    def is_up(self) -> bool:
        return self._failure(self._head) is None

    def failure(self, worker: int) -> Died | Silent | None:
        return self._failure(self._workers.get(worker))

    def renew(self, n_workers: int) -> Sequence[int]:
        if not self.is_up():
            self._await_engine()
            self.stop()
            self._condemned.clear()
            self.start()
            return range(len(self._limits))
        failed = [
            worker
            for worker in range(n_workers)
            if worker in self._condemned or self.failure(worker) is not None
        ]
        self._condemned.difference_update(failed)
        self._remove([self._workers.pop(worker) for worker in failed if worker in self._workers])
        self._start_workers(failed)
        return failed

    def condemn(self, worker: int) -> None:
        self._condemned.add(worker)

    def admit(self, folder: Path) -> None:
        share(folder)

    def limit_links(self, limits: links.Limits) -> None:
        try:
            self._limited_links = link_shaping.limit_links(
                self._client, self._place, self._workers, limits, self._limited_links
            )
        except BaseException:
            # What became of which link is not known; new containers have none that is limited.
            self._condemned.update(range(len(limits)))
            self._limited_links = {}
            raise

    def _failure(self, node: Node | None) -> Died | Silent | None:
        if node is None or self._events is None:
            return Died(what="container", exit_code=None)
        return self._events.failure(str(node.container.id))

    def _start_workers(self, workers: Sequence[int]) -> None:
        if not workers:
            return
        head = self._head
        assert head is not None

        def start(worker: int) -> None:
            self._workers[worker] = containers.start_worker(
                self._client, self._place, self._between, worker, head, self._limits[worker]
            )

        with ThreadPoolExecutor(len(workers)) as pool:
            for done in [pool.submit(start, worker) for worker in workers]:
                done.result()

    def _remove(self, nodes: Sequence[Node]) -> None:
        if not nodes:
            return
        with ThreadPoolExecutor(len(nodes)) as pool:
            list(pool.map(self._keep_logs_and_remove, nodes))

    def _keep_logs_and_remove(self, node: Node) -> None:
        output = log_of_host(self._log_dir, node.role)
        kept = output.parent
        with suppress(*GONE):
            kept.mkdir(parents=True, exist_ok=True)
            with output.open("ab") as file:
                file.write(node.container.logs())
            for log in sorted(self._place.ray_folder(node.role).glob("session_2*/logs/*")):
                if log.is_file() and log.stat().st_size:
                    shutil.copyfile(log, kept / log.name)
        with suppress(*GONE):
            containers.remove(node.container)

    def _await_engine(self) -> None:
        """Wait until the engine answers again, if it is on its way.

        Raises:
            ProvisionError: it does not come back.
        """
        limit_s = time.monotonic() + _ENGINE_BACK_S
        while True:
            with suppress(Exception):
                self._client.ping()
                return
            if time.monotonic() > limit_s:
                raise ProvisionError(
                    f"docker: the engine must answer, got nothing for {_ENGINE_BACK_S:g} s; start it and go "
                    "on with --resume"
                )
            time.sleep(_POLL_S)


def log_of_host(log_dir: Path, role: str) -> Path:
    """Where the output of a container is kept when it is removed, beside Ray's logs of it."""
    return log_dir / "ray" / role / HOST_LOG


def _refuse_system_folders(folders: Sequence[Path]) -> None:
    for folder in folders:
        if containers.is_of_image(folder):
            raise ProvisionError(
                "docker: workers are given a user's file with its folder, which must be one of its own, got "
                f"{folder}; move the file into a folder below"
            )
