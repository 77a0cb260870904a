"""The docker provider: what its containers may do, how they fail, and that nothing of them is left."""

import dataclasses
import functools
import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import docker
import probe_jobs
import pytest
from docker.models.containers import Container
from waiting import eventually, is_waiting

from harness.cluster import ClusterShape
from harness.errors import CaseError
from harness.provision.docker import leftovers, watch
from harness.provision.docker import provider as docker_provider
from harness.provision.docker.engine import IMAGE
from harness.provision.docker.leftovers import RUN_LABEL
from harness.provision.failures import ProvisionError
from harness.provision.protocols import Cluster, ProcessSet, StartOptions
from harness.provision.ray import process_set
from harness.provision.temporary_folder import Owner
from harness.worker.jobs import rendezvous
from harness.worker.process.job import Job

pytestmark = [pytest.mark.docker, pytest.mark.ray]

HERE = Path(__file__).parent
OPTIONS = StartOptions(imports=("json",))
RUN = f"test-docker-{os.getpid()}"
REFUSED, LEFT = f"test-refused-{os.getpid()}", f"test-left-{os.getpid()}"
MEMORY_BYTES = 1 << 30
SHAPE = ClusterShape(workers=2, memory_bytes=MEMORY_BYTES)


def of_run(client: docker.DockerClient, run: str) -> tuple[list[Container], list[str]]:
    filters: dict[str, str | list[str] | bool] = {"label": f"{RUN_LABEL}={run}"}
    containers = client.containers.list(all=True, filters=filters, ignore_removed=True)
    return containers, [str(network.name) for network in client.networks.list(filters=filters)]


@pytest.fixture(scope="module")
def client() -> Iterator[docker.DockerClient]:
    client = docker.from_env()
    yield client
    client.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def cluster(place: Path, client: docker.DockerClient) -> Iterator[Cluster]:
    cases = place / "cases"
    cases.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(HERE)  # where a user's files are found, and so what the workers import from
        with docker_provider.start(
            SHAPE, RUN, place / "logs", OPTIONS, reads=[HERE], writes=[cases]
        ) as started:
            started.wait_ready(2)
            yield started
        assert of_run(client, RUN) == ([], [])


@pytest.fixture
def logs(place: Path, tmp_path: Path) -> list[Path]:
    return [place / "cases" / tmp_path.name / f"worker-{k}.log" for k in range(2)]


@pytest.fixture
def processes(cluster: Cluster, logs: list[Path]) -> Iterator[ProcessSet]:
    with cluster.open_session(range(2), logs) as opened:
        yield opened


def container(client: docker.DockerClient, role: str) -> Container:
    return client.containers.get(f"stratbench-{RUN}-{role}")


class TestContainers:
    def test_jobs_run_in_hosts_of_their_own_and_reach_each_other(self, processes: ProcessSet) -> None:
        assert processes.call(probe_jobs.add, [(1, 2), (3, 4)], timeout_s=120) == [3, 7]
        assert len(set(processes.hosts)) == 2
        processes.call(rendezvous.listen, [(host,) for host in processes.hosts], timeout_s=120)
        first, second = processes.call(probe_jobs.host_name, [(), ()], timeout_s=120)
        assert first != second

    def test_each_has_a_core_of_its_own_and_a_limit_of_memory(
        self, client: docker.DockerClient, processes: ProcessSet
    ) -> None:
        first, second = processes.call(probe_jobs.affinity, [(), ()], timeout_s=120)
        assert isinstance(first, set)
        assert isinstance(second, set)
        assert len(first) == len(second) == 1
        assert not first & second
        for worker in range(2):
            limits = container(client, f"worker-{worker}").attrs["HostConfig"]
            assert limits["Memory"] == limits["MemorySwap"] == MEMORY_BYTES

    @pytest.mark.usefixtures("cluster")
    def test_they_may_do_nothing_that_a_worker_need_not(self, client: docker.DockerClient) -> None:
        for role in ("head", "worker-0", "worker-1"):
            attrs = container(client, role).attrs
            host = attrs["HostConfig"]
            assert host["ReadonlyRootfs"]
            assert host["CapDrop"] == ["ALL"]
            assert host["CapAdd"] in (None, [])
            assert host["SecurityOpt"] == ["no-new-privileges:true"]
            assert not host["Privileged"]
            assert attrs["Config"]["User"].split(":")[0] == "10001"
            assert host["PortBindings"] in (None, {})
            assert not host["PublishAllPorts"]
            assert not [mount for mount in attrs["Mounts"] if "docker.sock" in mount["Source"]]
            writable = [mount["Source"] for mount in attrs["Mounts"] if mount["RW"]]
            assert str(HERE) not in writable
            assert not [path for path in writable if path.endswith("token")]

    def test_inside_a_worker_no_privilege_is_left(self, processes: ProcessSet) -> None:
        (seen, _) = processes.call(probe_jobs.privileges, [(), ()], timeout_s=120)
        assert seen == {"uid": 10001, "capabilities": 0, "no_new_privileges": 1, "root_is_writable": False}

    def test_the_head_is_on_the_control_network_only(
        self, client: docker.DockerClient, processes: ProcessSet
    ) -> None:
        def networks(role: str) -> set[str]:
            return set(container(client, role).attrs["NetworkSettings"]["Networks"])

        control, data = f"stratbench-{RUN}-control", f"stratbench-{RUN}-data"
        assert networks("head") == {control}
        for worker, host in enumerate(processes.hosts):
            assert networks(f"worker-{worker}") == {control, data}
            of_container = container(client, f"worker-{worker}").attrs["NetworkSettings"]["Networks"]
            assert of_container[data]["IPAddress"] == host
        assert client.networks.get(data).attrs["Internal"]

    def test_the_token_is_in_a_file_alone(self, client: docker.DockerClient, processes: ProcessSet) -> None:
        token = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
        assert not stat.S_IMODE(token.stat().st_mode) & 0o337
        assert stat.S_IMODE(token.parent.stat().st_mode) == 0o700
        (seen, _) = processes.call(probe_jobs.environment, [(), ()], timeout_s=120)
        assert isinstance(seen, dict)
        assert not [name for name in seen if name.startswith("RAY_")]
        secret = token.read_text()
        for role in ("head", "worker-0", "worker-1"):
            result = container(client, role)
            assert secret not in json.dumps(result.attrs)
            assert secret.encode() not in result.logs()

    def test_output_goes_to_the_run_folder(self, processes: ProcessSet, logs: list[Path]) -> None:
        processes.call(probe_jobs.speak, [("first",), ("second",)], timeout_s=120)
        assert logs[1].read_text().split() == ["second", "second"]

    def test_a_stranger_on_another_network_finds_no_port(
        self, client: docker.DockerClient, processes: ProcessSet
    ) -> None:
        del processes
        addresses = [
            endpoint["IPAddress"]
            for role in ("head", "worker-0", "worker-1")
            for endpoint in container(client, role).attrs["NetworkSettings"]["Networks"].values()
        ]
        ports = sorted({port for role in ("head", "worker-0") for port in listening(container(client, role))})
        assert 6379 in ports
        image = container(client, "head").image
        assert image is not None
        scanned = client.containers.run(
            str(image.id), ["python", "-c", SCAN, json.dumps([addresses, ports])], remove=True
        )
        assert json.loads(scanned) == []
        # From the head's own network the same scan finds them, so that it can fail.
        control = f"stratbench-{RUN}-control"
        process = client.containers.run(
            str(image.id),
            ["python", "-c", SCAN, json.dumps([addresses, ports])],
            remove=True,
            network=control,
        )
        assert [addresses[0], 6379] in json.loads(process)


SCAN = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
addresses, ports = json.loads(sys.argv[1])
def is_open(door):
    try:
        socket.create_connection(door, 0.7).close()
        return True
    except OSError:
        return False
doors = [(address, port) for address in addresses for port in ports]
with ThreadPoolExecutor(64) as pool:
    print(json.dumps([door for door, found in zip(doors, pool.map(is_open, doors)) if found]))
"""


def listening(result: Container) -> set[int]:
    """Ports on which anything in a container listens."""
    _, text = result.exec_run(["cat", "/proc/net/tcp", "/proc/net/tcp6"])
    rows = [line.split() for line in text.decode().splitlines() if ":" in line]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}


class TestRefusals:
    """Each costs one line and leaves nothing running."""

    def refusal(self, client: docker.DockerClient, shape: ClusterShape, place: Path) -> str:
        run = REFUSED
        with (
            pytest.raises(ProvisionError) as caught,
            docker_provider.start(shape, run, place / "logs", OPTIONS),
        ):
            pass
        assert of_run(client, run) == ([], [])
        assert caught.value.exit_status == 3
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def test_an_image_that_is_not_there(self, client: docker.DockerClient, tmp_path: Path) -> None:
        shape = ClusterShape(workers=1, image="no-such-image:1")
        message = self.refusal(client, shape, tmp_path)
        assert "no-such-image:1 (stratbench " in message
        assert message.endswith("does not exist; run `make image`")

    def test_an_image_of_other_code(
        self, client: docker.DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("harness.provision.docker.engine.source_hash", lambda: "0" * 64)
        message = self.refusal(client, ClusterShape(workers=1), tmp_path)
        assert "(source 000000000000), got" in message
        assert message.endswith("run `make image`")

    def test_more_memory_than_the_host_has(self, client: docker.DockerClient, tmp_path: Path) -> None:
        message = self.refusal(client, ClusterShape(workers=1, memory_bytes=1 << 50), tmp_path)
        assert message.startswith("cluster.memory_per_worker: 1 containers need ")

    def test_a_name_that_is_taken(self, client: docker.DockerClient, tmp_path: Path) -> None:
        image = client.images.get(IMAGE)
        blocker = client.containers.create(str(image.id), name=f"stratbench-{REFUSED}-head")
        try:
            message = self.refusal(client, ClusterShape(workers=1), tmp_path)
        finally:
            blocker.remove()
        assert f"making the container stratbench-{REFUSED}-head failed: Conflict" in message
        assert message.endswith("remove it or end its run")


@pytest.mark.usefixtures("cluster")
def test_cleaning_takes_what_dead_runs_left_and_nothing_of_a_living_one(client: docker.DockerClient) -> None:
    owner = Owner.this_process()
    dead = dataclasses.replace(owner, started=(owner.started or 0) - 1)
    labels = leftovers.labels_of(LEFT, "worker-0") | {leftovers.OWNER_LABEL: dead.to_text()}
    client.networks.create(f"stratbench-{LEFT}-data", labels=labels)
    image = client.images.get(IMAGE)
    left = client.containers.create(str(image.id), name=f"stratbench-{LEFT}-worker-0", labels=labels)
    # Others on this host may have left something, too.
    reaped = [name for name in leftovers.reap(client) if LEFT in name]
    assert reaped == [left.name, f"stratbench-{LEFT}-data"]
    assert of_run(client, LEFT) == ([], [])
    containers, networks = of_run(client, RUN)
    assert len(containers) == 3
    assert len(networks) == 2


class TestFailures:
    @pytest.fixture(autouse=True)
    def _are_noticed_soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watch, "_PERIOD_S", 0.3)
        monkeypatch.setattr(watch, "_WAIT_S", 1.0)
        monkeypatch.setattr(process_set, "_PROBE_S", 1.0)

    def fails(
        self,
        cluster: Cluster,
        logs: Sequence[Path],
        harm: Callable[[], object],
        job: Job[None] = probe_jobs.wait_for_ever,
    ) -> CaseError:
        """Do harm to a cluster while a job runs on both workers; return how the case failed."""
        with cluster.open_session(range(2), logs) as opened:

            def when_it_runs() -> None:
                for log in logs:
                    eventually(functools.partial(is_waiting, log), 120.0, "the job runs")
                harm()

            thread = threading.Thread(target=when_it_runs)
            thread.start()
            with pytest.raises(CaseError) as caught:
                opened.call(job, [(), ()], timeout_s=300)
            thread.join()
        with cluster.open_session(range(2), logs) as opened:
            assert opened.call(probe_jobs.add, [(1, 2), (3, 4)], timeout_s=120) == [3, 7]
        return caught.value

    def test_a_killed_container(
        self, cluster: Cluster, client: docker.DockerClient, logs: list[Path]
    ) -> None:
        before = [container(client, f"worker-{k}").id for k in range(2)]
        error = self.fails(cluster, logs, lambda: container(client, "worker-1").kill())
        assert error.kind == "worker-died"
        assert "worker 1: its container was killed by SIGKILL" in str(error)
        after = [container(client, f"worker-{k}").id for k in range(2)]
        assert after[0] == before[0]
        assert after[1] != before[1]

    def test_a_paused_container(
        self, cluster: Cluster, client: docker.DockerClient, logs: list[Path]
    ) -> None:
        error = self.fails(cluster, logs, lambda: container(client, "worker-0").pause())
        assert error.kind == "unresponsive"
        assert "worker 0: its process is stopped" in str(error)

    def test_a_child_that_takes_too_much_memory(self, cluster: Cluster, logs: list[Path]) -> None:
        with (
            cluster.open_session(range(2), logs) as opened,
            pytest.raises(
                CaseError, match=r"worker 1: its process was killed for exceeding cluster\.memory_per"
            ) as caught,
        ):
            opened.call(probe_jobs.fill_memory, [(0,), (2 * MEMORY_BYTES,)], timeout_s=120)
        assert caught.value.kind == "out-of-memory"

    def test_a_cut_data_link(self, cluster: Cluster, client: docker.DockerClient, logs: list[Path]) -> None:
        data = client.networks.get(f"stratbench-{RUN}-data")
        error = self.fails(cluster, logs, lambda: data.disconnect(container(client, "worker-1")))
        assert error.kind == "link-down"
        assert "on the data network" in str(error)

    def test_a_cut_control_link(
        self, cluster: Cluster, client: docker.DockerClient, logs: list[Path]
    ) -> None:
        control = client.networks.get(f"stratbench-{RUN}-control")
        before = [container(client, f"worker-{k}").id for k in range(2)]
        error = self.fails(cluster, logs, lambda: control.disconnect(container(client, "worker-1")))
        assert error.kind == "link-down"
        assert "worker 1: this host lost it on the control network" in str(error)
        after = [container(client, f"worker-{k}").id for k in range(2)]
        assert after[0] == before[0]
        assert after[1] != before[1]

    def test_a_control_link_that_is_cut_between_cases_costs_none(
        self, cluster: Cluster, client: docker.DockerClient, logs: list[Path]
    ) -> None:
        control = client.networks.get(f"stratbench-{RUN}-control")
        control.disconnect(container(client, "worker-0"))
        with cluster.open_session(range(2), logs) as opened:
            assert opened.call(probe_jobs.add, [(1, 2), (3, 4)], timeout_s=120) == [3, 7]

    def test_a_full_disk(self, cluster: Cluster, logs: list[Path]) -> None:
        with cluster.open_session(range(2), logs) as opened, pytest.raises(CaseError) as caught:
            opened.call(probe_jobs.fill_disk, [(), ()], timeout_s=120)
        assert caught.value.kind == "disk-full"

    def test_the_end_of_the_head(
        self, cluster: Cluster, client: docker.DockerClient, logs: list[Path]
    ) -> None:
        error = self.fails(cluster, logs, lambda: container(client, "head").kill())
        assert error.kind == "worker-died"


DRIVER = """
    import os, sys
    from pathlib import Path
    from harness.cluster import ClusterShape
    from harness.provision.docker import provider
    from harness.provision.protocols import StartOptions

    place = Path(sys.argv[1])
    (place / "cases").mkdir()
    os.chdir(sys.argv[2])
    import probe_jobs
    options = StartOptions(imports=("json",))
    folders = {"reads": [Path.cwd()], "writes": [place / "cases"]}
    with provider.start(ClusterShape(workers=1), sys.argv[3], place / "logs", options, **folders) as cluster:
        with cluster.open_session(range(1), [place / "cases" / "a" / "worker-0.log"]) as processes:
            processes.call(probe_jobs.wait_for_ever, [()], timeout_s=600)
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Driver:
    """A process with a cluster of its own, and the folder of its output."""

    process: "subprocess.Popen[bytes]"
    folder: Path
    run: str

    def is_at_work(self) -> bool:
        assert self.process.poll() is None, (self.folder / "output").read_text()
        return is_waiting(self.folder / "cases" / "a" / "worker-0.log")


@contextmanager
def driver(folder: Path, run: str) -> Iterator[Driver]:
    """Start one; it is dead when the context ends."""
    folder.mkdir()
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(DRIVER), str(folder), str(HERE), run],
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            yield Driver(process=process, folder=folder, run=run)
        finally:
            process.kill()
            process.wait()


def test_nothing_is_left_of_drivers_that_end(client: docker.DockerClient, tmp_path: Path) -> None:
    def is_gone(run: str) -> bool:
        return of_run(client, run) == ([], [])

    with ExitStack() as stack:
        drivers = {
            number: stack.enter_context(
                driver(tmp_path / str(int(number)), f"test-dead-{number}-{os.getpid()}")
            )
            for number in (signal.SIGKILL, signal.SIGINT)
        }
        for started in drivers.values():
            eventually(started.is_at_work, 120.0, "the job runs")
        for number, started in drivers.items():
            started.process.send_signal(number)
        for started in drivers.values():
            started.process.wait(timeout=60.0)
            eventually(functools.partial(is_gone, started.run), 120.0, "containers and networks are gone")
