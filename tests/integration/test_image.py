"""The image of workers: what it is made of, and that it works where nearly everything is forbidden."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import docker
import pytest
from docker.models.containers import Container
from docker.models.images import Image

pytestmark = pytest.mark.docker

LOCK = Path(__file__).parents[2] / ".ci" / "lock" / "worker-cpu.txt"
NAME = "stratbench-worker:dev"
MAX_BYTES = 2_000_000_000
DEADLINE_S = 120.0
# What every worker is started with.
HARDENED = {
    "read_only": True,
    "tmpfs": {"/tmp": ""},
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges"],
    "network_mode": "none",
}

FACTS = """
import importlib.util, json, os, pathlib
import tensorflow as tf

def refused(folder):
    try:
        pathlib.Path(folder, "x").touch()
    except OSError:
        return True
    return False

status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
print(json.dumps({
    "sum": float(tf.reduce_sum(tf.ones((2, 3)))),
    "tensorflow": tf.__version__,
    "compiled": pathlib.Path(importlib.util.cache_from_source(tf.__file__)).is_file(),
    "ids": [os.getuid(), os.getgid()],
    "capabilities": int(status["CapEff"], 16),
    "no_new_privileges": int(status["NoNewPrivs"]),
    "refused": [refused(folder) for folder in ("/", "/opt/stratbench", "/var")],
    "present": [name for name in ABSENT if importlib.util.find_spec(name)],
    "opt": sorted(os.listdir("/opt")),
}))
"""
ABSENT = ("pyarrow", "pytest", "hypothesis", "mypy", "ruff", "importlinter", "pre_commit", "pip")


@pytest.fixture(scope="module")
def client() -> Iterator[docker.DockerClient]:
    client = docker.from_env()
    yield client
    client.close()


@pytest.fixture(scope="module")
def image(client: docker.DockerClient) -> Image:
    return client.images.get(NAME)


@pytest.fixture
def started(client: docker.DockerClient) -> Iterator[list[Container]]:
    containers: list[Container] = []
    yield containers
    for container in containers:
        container.remove(force=True, v=True)


def output(client: docker.DockerClient, command: Sequence[str]) -> str:
    """Standard output of a command in a hardened container."""
    return client.containers.run(NAME, list(command), remove=True, stderr=False, **HARDENED).decode()


def locked(package: str) -> str:
    """A package's version in the workers' lock file."""
    (version,) = re.findall(rf"^{package}==(\S+)", LOCK.read_text(), re.MULTILINE)
    return str(version)


def test_labels_say_what_it_was_made_of(image: Image) -> None:
    assert image.labels["org.opencontainers.image.version"] == metadata.version("stratbench")
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?|unknown", image.labels["org.opencontainers.image.revision"])
    assert re.fullmatch(r"[0-9a-f]{64}", image.labels["io.stratbench.source"])
    assert image.labels["io.stratbench.lock"] == hashlib.sha256(LOCK.read_bytes()).hexdigest()


def test_it_is_no_larger_than_promised(image: Image) -> None:
    assert image.attrs["Size"] <= MAX_BYTES


def test_nothing_of_the_network_it_was_built_in_stays(image: Image) -> None:
    steps = json.dumps([step["CreatedBy"] for step in image.history()])
    message = steps + json.dumps(image.attrs["Config"]["Env"])
    assert not re.search(r"_INDEX_URL=|_proxy=|CA_BUNDLE=|CERT", message, re.IGNORECASE)


def test_tensorflow_computes_where_nothing_may_be_written(client: docker.DockerClient) -> None:
    facts = json.loads(output(client, ["python", "-c", FACTS.replace("ABSENT", repr(ABSENT))]))
    assert facts == {
        "sum": 6.0,
        "tensorflow": locked("tensorflow-cpu"),
        "compiled": True,
        "ids": [10001, 10001],
        "capabilities": 0,
        "no_new_privileges": 1,
        "refused": [True, True, True],
        "present": [],
        "opt": ["stratbench"],
    }


def test_the_command_line_answers_in_it(client: docker.DockerClient) -> None:
    listed = json.loads(output(client, ["stratbench", "list", "workloads", "--json"]))
    assert "digits-mlp" in {workload["name"] for workload in listed}


def test_a_node_of_ray_is_healthy_and_an_idle_container_is_not(
    client: docker.DockerClient, started: list[Container]
) -> None:
    check = client.images.get(NAME).attrs["Config"]["Healthcheck"]["Test"]
    assert check[0] == "CMD-SHELL"
    node = ["ray", "start", "--head", "--block", "--num-cpus", "1", "--include-dashboard=false"]
    for command in ([*node, "--object-store-memory", "80000000"], ["sleep", "infinity"]):
        container = client.containers.run(NAME, command, detach=True, shm_size="128m", **HARDENED)
        started.append(container)
    ray, idle = started
    deadline = time.monotonic() + DEADLINE_S
    while ray.exec_run(["sh", "-c", check[1]]).exit_code != 0:
        ray.reload()
        assert ray.status == "running", ray.logs(tail=20).decode()
        assert time.monotonic() < deadline, ray.logs(tail=20).decode()
    assert idle.exec_run(["sh", "-c", check[1]]).exit_code != 0
