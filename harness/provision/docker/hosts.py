"""Containers of a run as hosts of its workers: started, watched, replaced and removed."""

import os
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import docker

from harness import cluster
from harness.errors import StoreError
from harness.provision.docker import containers
from harness.provision.docker.container_settings import ContainerLimits, RunPlace, share
from harness.provision.docker.containers import CLIENT_PORT, ContainerNode, Networks
from harness.provision.docker.engine import GONE
from harness.provision.docker.watch import ContainerEvents, ControlLinks
from harness.provision.failures import HOST_LOG, ProvisionError
from harness.provision.hosts import Hosts
from harness.records.contained_files import make_folder, open_to_write, opened_inside, written_files
from harness.worker.process.forked_process import STOPPED_S
from harness.worker.process.messages import CutOff, Died, Silent

_ENGINE_BACK_S = 30.0
_POLL_S = 0.2


class ContainerHosts(Hosts):
    """The containers of a run."""

    def __init__(
        self,
        client: docker.DockerClient,
        place: RunPlace,
        between: Networks,
        limits: Sequence[ContainerLimits],
        log_dir: Path,
    ) -> None:
        self._client = client
        self._place = place
        self._between = between
        self._log_dir = log_dir
        self._limits = limits
        self._head: ContainerNode | None = None
        self._workers: dict[int, ContainerNode] = {}
        self._condemned: set[int] = set()
        self._is_connected = False
        self._events: ContainerEvents | None = None
        self._control_links: ControlLinks | None = None
        self._n_started: Counter[int] = Counter()
        self._limited_links: containers.Limited = {}

    def start(self) -> None:
        from harness.provision.ray import client

        self._events = ContainerEvents(self._client, self._place.run_id)
        self._control_links = ControlLinks()
        self._head = containers.start_head(self._client, self._place, self._between)
        self._start_workers(range(len(self._limits)))
        client.connect(f"{self._head.control_address}:{CLIENT_PORT}", is_up=self.is_up)
        self._is_connected = True

    def stop(self) -> None:
        """Disconnect, keep the logs, and remove the containers."""
        import ray

        if self._is_connected:
            self._is_connected = False
            # A head that is gone does not acknowledge the end.
            with suppress(Exception):
                ray.shutdown()
        if self._events is not None:
            self._events.close()
        if self._control_links is not None:
            self._control_links.close()
        nodes = [*self._workers.values(), *([] if self._head is None else [self._head])]
        self._workers, self._head = {}, None
        self._remove(nodes)

    @property
    def addresses(self) -> Sequence[str]:
        return [self._workers[worker].data_address or "" for worker in sorted(self._workers)]

    def is_up(self) -> bool:
        return self._failure(self._head) is None

    def options(self, worker: int) -> Mapping[str, object]:
        return {"resources": {self._resource(worker): 1}}

    def failure(self, worker: int, *, stopped_s: float = STOPPED_S) -> Died | Silent | CutOff | None:
        return self._failure(self._workers.get(worker), stopped_s)

    def replace_failed(self, n_workers: int) -> Sequence[int]:
        """Replace containers that have failed or are condemned; all of them if the head has ended."""
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

    def mark_failed(self, worker: int) -> None:
        self._condemned.add(worker)

    def allow_writing(self, folder: Path) -> None:
        share(folder)

    def limit_links(self, limits: cluster.Limits) -> None:
        try:
            self._limited_links = containers.limit_links(
                self._client, self._place, self._workers, limits, self._limited_links
            )
        except BaseException:
            # The state of each link is unknown; links of new containers are unlimited.
            self._condemned.update(range(len(limits)))
            self._limited_links = {}
            raise

    def _failure(
        self, node: ContainerNode | None, stopped_s: float = STOPPED_S
    ) -> Died | Silent | CutOff | None:
        if node is None or self._events is None or self._control_links is None:
            return Died(what="container", exit_code=None)
        container_id = str(node.container.id)
        return self._events.failure(container_id, stopped_s) or self._control_links.failure(container_id)

    def _resource(self, worker: int) -> str:
        # For a while, Ray may still consider a replaced container alive.
        return f"stratbench_worker_{worker}_{self._n_started[worker]}"

    def _start_workers(self, workers: Sequence[int]) -> None:
        if not workers:
            return
        head, control_links = self._head, self._control_links
        assert head is not None
        assert control_links is not None

        def start(worker: int) -> None:
            node = containers.start_worker(
                self._client,
                self._place,
                self._between,
                worker,
                head,
                self._limits[worker],
                self._resource(worker),
            )
            self._workers[worker] = node
            control_links.watch(str(node.container.id), node.control_address)

        self._n_started.update(workers)
        with ThreadPoolExecutor(len(workers)) as pool:
            for done in [pool.submit(start, worker) for worker in workers]:
                done.result()

    def _remove(self, nodes: Sequence[ContainerNode]) -> None:
        if not nodes:
            return
        with ThreadPoolExecutor(len(nodes)) as pool:
            list(pool.map(self._keep_logs_and_remove, nodes))

    def _keep_logs_and_remove(self, node: ContainerNode) -> None:
        if self._control_links is not None:
            self._control_links.forget(str(node.container.id))
        try:
            # A log that is a link, or cannot be written, is skipped.
            with suppress(*GONE, StoreError):
                _keep_logs(node, self._log_dir, self._place.ray_folder(node.role))
        finally:
            containers.remove(node.container)

    def _await_engine(self) -> None:
        """Wait until a restarting engine answers again.

        Raises:
            ProvisionError: the engine still does not answer.
        """
        limit_s = time.monotonic() + _ENGINE_BACK_S
        while True:
            with suppress(Exception):
                self._client.ping()
                return
            if time.monotonic() > limit_s:
                raise ProvisionError(
                    f"docker: the engine has not answered for {_ENGINE_BACK_S:g} s; start it and "
                    "continue with --resume"
                )
            time.sleep(_POLL_S)


def _keep_logs(node: ContainerNode, log_dir: Path, ray_folder: Path) -> None:
    """Copy a container's output and Ray's logs; the container's code may have replaced them by anything."""
    log_dir.mkdir(parents=True, exist_ok=True)
    output = log_of_host(log_dir, node.role)
    make_folder(log_dir, *output.parent.relative_to(log_dir).parts)
    with os.fdopen(open_to_write(output, is_appended=True), "ab") as file:
        file.write(node.container.logs())
    for session in sorted(ray_folder.glob("session_2*")):
        with suppress(OSError, StoreError):
            for name in written_files(ray_folder, session.name, "logs"):
                with suppress(OSError, StoreError):
                    _copy_log(ray_folder, (session.name, "logs", name), output.parent / name)


def _copy_log(folder: Path, names: tuple[str, ...], target: Path) -> None:
    with (
        opened_inside(folder, *names) as descriptor,
        os.fdopen(os.dup(descriptor), "rb") as source,
        os.fdopen(open_to_write(target, is_replaced=True), "wb") as file,
    ):
        shutil.copyfileobj(source, file)


def log_of_host(log_dir: Path, role: str) -> Path:
    """Path for a container's output after its removal, next to Ray's logs."""
    return log_dir / "ray" / role / HOST_LOG
