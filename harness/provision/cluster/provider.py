"""The `cluster` provider: workers as actors on the nodes of an existing Ray cluster."""

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cluster import ClusterShape, Connection
from harness.provision.failures import HEAD_GONE, ProvisionError, RayEndedError
from harness.provision.hosts import WorkerSetup
from harness.provision.protocols import USUAL_START, ClusterFacts, StartOptions
from harness.provision.ray.settings import chatter_in, ray_environment
from harness.provision.temporary_folder import PREFIX, reap, run_folder
from harness.provision.worker_environment import process_variables
from harness.records.record import CORES_SHARED

if TYPE_CHECKING:
    from harness.provision.cluster.hosts import ClusterHosts
    from harness.provision.ray.client import Head
    from harness.provision.ray.pool import RayCluster

_ON_NODES = Path("/tmp")  # noqa: S108 - every node has it; the folder below is of its user alone
_CONNECT_S = 20.0


def require(shape: ClusterShape) -> None:
    """Check nothing: only the cluster knows its resources, which are checked at placement."""


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
    """Place workers on nodes of the cluster."""
    started_s = time.monotonic()
    log_dir.mkdir(parents=True, exist_ok=True)
    reap()
    with _ended_head_reported(), ExitStack() as stack:
        own = stack.enter_context(run_folder())
        token = _token_file(shape.connection)
        stack.enter_context(ray_environment(own, token))
        stack.enter_context(chatter_in(log_dir / f"ray-{run_id}.log"))
        head = stack.enter_context(_connected(shape.connection))

        from harness.provision.cluster.file_sync import SCRATCH, SyncedFiles, tree_name
        from harness.provision.cluster.hosts import ClusterHosts
        from harness.provision.cluster.placement import await_room, placed, require_nodes
        from harness.provision.ray.pool import RayCluster

        await_room(shape)
        group = stack.enter_context(placed(shape, head))
        folder = _ON_NODES / f"{PREFIX}{secrets.token_hex(6)}"
        below = ["tmp", SCRATCH, tree_name(log_dir), tree_name(Path.cwd())]
        hosts = ClusterHosts(head, group, shape, lambda: require_nodes(shape), folder, below)
        stack.callback(hosts.stop)
        hosts.start()
        files = SyncedFiles(
            folder, hosts.agents, [log_dir, *writes], [] if token is None else [token], head.call
        )
        files.upload_user_files(reads)
        cluster = RayCluster(
            _setups(shape, folder, log_dir),
            hosts=hosts,
            scratch=folder / SCRATCH,
            facts=lambda: _facts(hosts, shape.workers),
            started_s=started_s,
            options=options,
            files=files,
        )
        stack.callback(_stop, cluster, head)
        yield cluster


def _setups(shape: ClusterShape, folder: Path, logs: Path) -> list[WorkerSetup]:
    from harness.provision.cluster.file_sync import tree_name
    from harness.provision.cluster.tpu_slices import actor_options

    environment = process_variables(folder, shape.hardware, folder / "tmp")
    return [
        WorkerSetup(
            resources=actor_options(shape),
            environment=environment,
            log=logs / f"fork-server-{worker}.log",
            remote_log=folder / tree_name(logs) / f"fork-server-{worker}.log",
            folder=folder / tree_name(Path.cwd()),
            has_probe=True,
        )
        for worker in range(shape.workers)
    ]


@contextmanager
def _ended_head_reported() -> Iterator[None]:
    """Report in one line that the head has ended, whichever call to Ray noticed it first."""
    try:
        yield
    except RayEndedError as error:
        raise ProvisionError(HEAD_GONE) from error


@contextmanager
def _connected(connection: Connection) -> Iterator["Head"]:
    import ray

    from harness.provision.ray import client

    assert connection.address is not None
    client.connect(
        connection.address,
        is_up=lambda: True,
        wait_s=_CONNECT_S,
        way_out="start it, or name another with cluster.address; cluster.token_file holds its token",
    )
    head = client.Head(connection.address)
    try:
        yield head
    finally:
        # A head that is gone does not acknowledge the end, but this process must disconnect all the same.
        with suppress(Exception):
            ray.shutdown()


def _stop(cluster: "RayCluster", head: "Head") -> None:
    with suppress(ConnectionError):
        head.call(cluster.stop)


def _token_file(connection: Connection) -> Path | None:
    path = connection.token_file
    if path is None:
        return None
    try:
        is_empty = not path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise ProvisionError(
            f"must be a file that holds the cluster's token, got {path}: {why}; copy it from the "
            "cluster's head",
            field="cluster.token_file",
        ) from error
    if is_empty:
        raise ProvisionError(
            f"must hold the cluster's token, got an empty file {path}; copy it from the cluster's head",
            field="cluster.token_file",
        )
    return path.absolute()


def _facts(hosts: "ClusterHosts", n_workers: int) -> ClusterFacts:
    nodes = hosts.facts
    n_nodes = len({node.node_id for node in nodes})
    is_pinned = all(hosts.cores(worker) is not None for worker in range(n_workers))
    notes = []
    if n_nodes < len(nodes):
        notes.append(f"{len(nodes)} workers share {n_nodes} nodes of the cluster")
    if not is_pinned:
        notes.append(f"{CORES_SHARED}: a machine of the cluster has fewer than its workers asked for")
    if len({(n.machine.cpu_model, n.machine.n_cores, n.machine.architecture) for n in nodes}) > 1:
        notes.append("workers are on machines that differ; the record names that of worker 0")
    return ClusterFacts(
        notes=tuple(notes),
        pinned=is_pinned,
        exposed=True,  # The network is shared with other users of the cluster.
        machine=nodes[0].machine,
        clock_hz=max(node.clock_hz for node in nodes),
    )
