"""Workers on a Ray cluster that is there already, whose nodes and the driver share no files."""

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import docker
import node_jobs
import pytest
from docker.models.containers import Container
from waiting import eventually
from watched_run import records, watched

from harness.cluster import ClusterShape, Connection
from harness.errors import CaseError
from harness.provision.cluster import provider
from harness.provision.docker import containers, leftovers
from harness.provision.docker.container_settings import ContainerLimits, RunPlace, share_secret
from harness.provision.docker.containers import CLIENT_PORT
from harness.provision.docker.engine import IMAGE
from harness.provision.failures import HEAD_GONE, ProvisionError
from harness.provision.protocols import StartOptions
from harness.provision.ray.settings import NODE_VARIABLES, write_token

pytestmark = [pytest.mark.docker, pytest.mark.ray]

# Longer than a job takes to begin, and after that until a loss is noticed.
NOTICED_S = 180.0
ROOT = Path(__file__).parents[2]
RUN = f"test-cluster-{os.getpid()}"
SIBLING = "from workloads.registry import resolve\n"
WORKLOAD = """
from sibling import resolve


def made():
    return resolve("digits-mlp", {})
"""


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """A cluster of two nodes, with a network of their own for data."""

    address: str
    token: Path
    data_network: str
    head: Container
    workers: list[Container]

    def settings(self) -> list[str]:
        messages = {
            "address": self.address,
            "token_file": self.token,
            "data_network": self.data_network,
        }
        return [part for key, value in messages.items() for part in ("--set", f"cluster.{key}={value}")]

    def left(self) -> list[str]:
        """Files of a run and processes of workers that are there."""
        seen = "ls -d /tmp/stratbench-* 2>/dev/null; grep -las '[h]arness.worker' /proc/[0-9]*/cmdline; true"
        return [
            line
            for node in self.workers
            for line in node.exec_run(["sh", "-c", seen]).output.decode().splitlines()
        ]


class Losses:
    """Runs on workers of a cluster that something happens to."""

    def __init__(self, nodes: Nodes, folder: Path) -> None:
        shutil.copy(node_jobs.__file__, folder)
        self.nodes = nodes
        self.folder = folder

    def n_with(self, file: str) -> int:
        """Number of live nodes that have a file."""
        result = 0
        for node in self.nodes.workers:
            with suppress(docker.errors.APIError):
                result += node.exec_run(["test", "-e", file]).exit_code == 0
        return result

    def losing(self, lost: Container, n_workers: int) -> tuple[CaseError, ProvisionError]:
        """Failure of a case whose cluster loses a node in the middle, and of the run that goes on."""
        connection = Connection(
            address=self.nodes.address, token_file=self.nodes.token, data_network=self.nodes.data_network
        )
        shape = ClusterShape(workers=n_workers, connection=connection)
        logs = [self.folder / "logs" / f"worker-{k}.log" for k in range(n_workers)]
        seen = f"/tmp/waiting-{n_workers}"

        def harm() -> None:
            eventually(lambda: self.n_with(seen) == n_workers, NOTICED_S, "the job runs")
            lost.kill()

        failed = CaseError("none", "no case has failed", stage="run")
        thread = threading.Thread(target=harm)
        options = StartOptions(imports=("json",))
        try:
            with provider.start(shape, RUN, self.folder / "logs", options, reads=[self.folder]) as cluster:
                try:
                    with cluster.open_session(range(n_workers), logs) as processes:
                        thread.start()
                        # Where nobody notices, the case fails as unresponsive when its time is up.
                        processes.call(node_jobs.wait, [(seen,)] * n_workers, timeout_s=NOTICED_S)
                except CaseError as error:
                    failed = error
                thread.join()
                with cluster.open_session(range(n_workers), logs):
                    raise AssertionError("a run goes on without what it has lost")
        except ProvisionError as ended:
            return failed, ended


@pytest.fixture
def losses(nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Losses:
    monkeypatch.chdir(tmp_path)
    return Losses(nodes, tmp_path)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    client = docker.from_env()
    folder = tmp_path_factory.mktemp("cluster")
    token = write_token(folder)
    share_secret(token)
    place = RunPlace(
        run_id=RUN,
        image=str(client.images.get(IMAGE).id),
        folder=folder,
        token=token,
        reads=(),
        writes=(),
        current=folder,
        # The head reports a node as lost after five failed checks, by default one in three seconds.
        environment={**NODE_VARIABLES, "RAY_health_check_period_ms": "1000"},
    )
    try:
        with leftovers.removed_after_driver(RUN), containers.networks(client, place) as between:
            try:
                head = containers.start_head(client, place, between)
                cores = sorted(os.sched_getaffinity(0))
                started = [
                    containers.start_worker(
                        client,
                        place,
                        between,
                        k,
                        head,
                        ContainerLimits(cores=(cores[k % len(cores)],)),
                        f"worker-{k}",
                    )
                    for k in range(2)
                ]
                for node in started:
                    eventually(partial(is_healthy, node.container), 120.0, f"{node.role} is healthy")
                between.data.reload()
                yield Nodes(
                    address=f"{head.control_address}:{CLIENT_PORT}",
                    token=token,
                    data_network=between.data.attrs["IPAM"]["Config"][0]["Subnet"],
                    head=head.container,
                    workers=[node.container for node in started],
                )
            finally:
                leftovers.remove_run(client, RUN)
    finally:
        client.close()


def is_healthy(container: Container) -> bool:
    container.reload()
    return bool(container.attrs["State"]["Health"]["Status"] == "healthy")


def test_a_run_is_checked_and_its_files_travel(nodes: Nodes, tmp_path: Path) -> None:
    user = tmp_path / "user"
    (user / "models").mkdir(parents=True)
    (user / "models" / "mine.py").write_text(WORKLOAD)
    (user / "models" / "sibling.py").write_text(SIBLING)
    command = ["run", "quickstart", "--workloads", "models/mine.py:made", "--strategies", "none,all-reduce"]
    size = ["--steps", "5", "--warmup", "2", "--repeats", "1", "--checkpoint", "--json"]
    with watched([*command, *size, "--provider", "cluster", "--out", "out", *nodes.settings()], user) as run:
        status, _, errors = run.finish()
    assert status == 0, errors
    results = {record["strategy"]: record for record in records(user / "out")}
    # The marks that they have with any provider.
    assert results["all-reduce"]["equivalence"]["equivalent"] is True
    assert results["none"]["equivalence"]["equivalent"] is False
    assert {record["provider"] for record in results.values()} == {"cluster"}
    matrix = results["all-reduce"]["tcp_matrix"]
    assert matrix[0][1] > 0
    assert matrix[1][0] > 0
    for case in (user / "out" / "cases").iterdir():
        assert {"worker-0.log", "worker-1.log", "checkpoint"} <= {path.name for path in case.glob("0/*")}
        assert (case / "0" / "checkpoint" / "checkpoint").is_file()
    assert (user / "out" / "logs" / "fork-server-1.log").is_file()
    secret = nodes.token.read_bytes()
    assert not [path for path in (user / "out").rglob("*") if path.is_file() and secret in path.read_bytes()]
    assert nodes.left() == []


def test_nodes_of_other_code_are_refused_and_left_clean(nodes: Nodes, tmp_path: Path) -> None:
    for package in ("harness", "reports", "strategies", "workloads"):
        shutil.copytree(ROOT / package, tmp_path / package)
    (tmp_path / "harness" / "newer.py").touch()
    command = ["run", "quickstart", "--workers", "2", "--provider", "cluster", *nodes.settings()]
    with watched(command, tmp_path, PYTHONPATH=str(tmp_path)) as run:
        status, _, errors = run.finish()
    assert status == 3, errors
    (line,) = [line for line in errors.splitlines() if line.startswith("stratbench: ")]
    assert "must have the code that runs here" in line
    assert nodes.left() == []


# From here on the cluster has less and less.
def test_the_loss_of_a_node_fails_its_case_and_ends_the_run_without_another(losses: Losses) -> None:
    failed, ended = losses.losing(losses.nodes.workers[1], 2)
    assert failed.kind in ("worker-died", "link-down"), ended
    assert "each of 2 workers needs a node of its own with 1 CPU, got 1 such" in str(ended)


def test_the_loss_of_the_head_fails_its_case_and_ends_the_run(losses: Losses) -> None:
    failed, ended = losses.losing(losses.nodes.head, 1)
    assert failed.kind == "worker-died", ended
    assert str(ended) == HEAD_GONE
