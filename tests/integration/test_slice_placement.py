"""Workers on the hosts of a TPU slice, imitated: containers with false devices and a slice's variables."""

import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import docker
import node_jobs
import pytest
from docker.models.containers import Container
from waiting import eventually

from harness.cluster import ClusterShape, Connection, Slice
from harness.provision.cluster import provider
from harness.provision.docker import containers, leftovers
from harness.provision.docker.container_settings import RunPlace, share_secret
from harness.provision.docker.containers import CLIENT_PORT, GCS_PORT, ContainerNode
from harness.provision.docker.engine import IMAGE
from harness.provision.failures import ProvisionError
from harness.provision.protocols import StartOptions
from harness.provision.ray.settings import NODE_VARIABLES, write_token

pytestmark = [pytest.mark.docker, pytest.mark.ray]

RUN = f"test-slices-{os.getpid()}"
N_CHIPS = 4
# Asked of Ray itself where it runs, as an address of its own that needs no client.
COUNT = "import ray; ray.init('auto', logging_level='ERROR'); print(len(ray.nodes()))"


def start_node(
    client: docker.DockerClient, place: RunPlace, head: ContainerNode, role: str, host: int | None
) -> Container:
    """A node that is a host of the slice `role`, or, without a number, has no TPU."""
    of_slice = {
        "TPU_NAME": role,
        "TPU_WORKER_ID": str(host),
        "TPU_ACCELERATOR_TYPE": "v4-16",
        "TPU_TOPOLOGY": "2x2x2",
    }
    return client.containers.run(
        place.image,
        ["ray", "start", "--block", f"--address={head.control_address}:{GCS_PORT}", "--num-cpus=1"],
        name=place.name(f"{role}-{host}"),
        labels=leftovers.labels_of(RUN, role),
        environment={
            **place.environment,
            **({} if host is None else of_slice),
            "RAY_AUTH_TOKEN_PATH": "/run/token",
            "HOME": "/tmp",
        },
        devices=[] if host is None else [f"/dev/null:/dev/accel{chip}" for chip in range(N_CHIPS)],
        volumes={str(place.token): {"bind": "/run/token", "mode": "ro"}},
        network=place.name("control"),
        group_add=[str(os.getgid())],
        shm_size="256m",
        init=True,
        detach=True,
    )


def is_healthy(container: Container) -> bool:
    container.reload()
    return bool(container.attrs["State"]["Health"]["Status"] == "healthy")


def n_joined(head: ContainerNode) -> int:
    """Number of nodes in Ray's cluster, its head among them; 0 while it does not answer."""
    done = head.container.exec_run(["python", "-c", COUNT], stderr=False)
    return int(done.output.split()[-1]) if done.exit_code == 0 else 0


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """A cluster with a whole slice, a slice whose second host is gone, and a node without TPUs."""
    client = docker.from_env()
    folder = tmp_path_factory.mktemp("slices")
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
        environment=NODE_VARIABLES,
    )
    try:
        with leftovers.removed_after_driver(RUN), containers.networks(client, place) as between:
            try:
                head = containers.start_head(client, place, between)
                # What comes first in any order is not what is to be taken.
                hosts = (("broken", 0), ("whole", 1), ("whole", 0), ("plain", None))
                for node in [start_node(client, place, head, role, host) for role, host in hosts]:
                    eventually(partial(is_healthy, node), 120.0, f"{node.name} is healthy")
                # A node is healthy before its head knows of it.
                eventually(lambda: n_joined(head) == len(hosts) + 1, 120.0, "all nodes have joined")
                yield Connection(
                    address=f"{head.control_address}:{CLIENT_PORT}",
                    token_file=token,
                    slice=Slice(accelerator="v4", topology="2x2x2"),
                )
            finally:
                leftovers.remove_run(client, RUN)
    finally:
        client.close()


def test_each_worker_is_on_its_own_host_of_one_whole_slice(
    connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(node_jobs.__file__, tmp_path)
    monkeypatch.chdir(tmp_path)
    shape = ClusterShape(workers=2, device="tpu", connection=connection)
    options = StartOptions(imports=("json",))
    with provider.start(shape, RUN, tmp_path / "logs", options, reads=[tmp_path]) as cluster:
        # Ray's native half reads when it is imported whether there are tokens.
        import ray

        from harness.provision.cluster.placement import placed, placed_on_slice
        from harness.provision.ray.client import Head

        head = Head(str(connection.address))
        logs = [tmp_path / "logs" / f"worker-{k}.log" for k in range(2)]
        with cluster.open_session(range(2), logs) as processes:
            seen = processes.call(node_jobs.slice_and_chips, [(), ()], timeout_s=120)
            assert seen == [("whole", "0", N_CHIPS), ("whole", "1", N_CHIPS)]
            assert len(set(processes.hosts)) == 2
        assert ray.cluster_resources()["TPU"] == 3 * N_CHIPS
        # Nodes tell the head after a while what they have given away.
        eventually(lambda: ray.available_resources().get("TPU") == N_CHIPS, 60.0, "two hosts are taken")
        with (
            pytest.raises(ProvisionError, match="v4 slices 2x2x2 were in use"),
            placed_on_slice(shape, head, within_s=1.0),
        ):
            pass
        # Without a slice any node with so many chips will do.
        anywhere = ClusterShape(workers=1, replicas_per_worker=N_CHIPS, device="tpu")
        with placed(anywhere, head):
            eventually(lambda: "TPU" not in ray.available_resources(), 60.0, "the last chips are taken")
        eventually(lambda: ray.available_resources().get("TPU") == N_CHIPS, 60.0, "they are free again")
