"""The cluster of compose.yaml: it comes up, runs an experiment, and leaves nothing."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import docker
import pytest
from watched_run import records

pytestmark = [pytest.mark.docker, pytest.mark.compose]

ROOT = Path(__file__).parents[2]
PROJECT = f"stratbenchtest{os.getpid()}"
DATA_NETWORK = f"10.214.{os.getpid() % 256}.0/24"  # none that compose.yaml gives by itself
SERVICES = {"head", "worker", "bench", "nightly", "prometheus", "grafana"}
LABEL = f"com.docker.compose.project={PROJECT}"


def compose(folder: Path, *arguments: str, check: bool = True) -> str:
    done = subprocess.run(
        ["docker-compose", "-p", PROJECT, *arguments],
        cwd=folder,
        env={**os.environ, "STRATBENCH_DATA_NETWORK": DATA_NETWORK},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert not check or done.returncode == 0, done.stderr
    return done.stdout


def left() -> Sequence[str]:
    """Containers, networks and volumes of the project."""
    client = docker.from_env()
    try:
        filters: dict[str, str | list[str] | bool] = {"label": LABEL}
        return [
            *(
                str(container_of_run.name)
                for container_of_run in client.containers.list(all=True, filters=filters, ignore_removed=True)
            ),
            *(str(network.name) for network in client.networks.list(filters=filters)),
            *(str(volume.name) for volume in client.volumes.list(filters=filters)),
        ]
    finally:
        client.close()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "compose.yaml", tmp_path)
    for name in ("files", "prometheus.yml", "rules.yml", "grafana.yml", "dashboards.yml", "dashboard.json"):
        path = tmp_path / "harness" / "provision" / "compose" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "harness" / "provision" / "compose" / name, path)
    subprocess.run(["harness/provision/compose/files"], cwd=tmp_path, check=True)
    return tmp_path


def test_a_cluster_comes_up_runs_an_experiment_and_leaves_nothing(project: Path) -> None:
    # Grafana cannot be had everywhere; that its service is as it should be can be told without it.
    profiles = [part for name in ("grafana", "bench", "nightly") for part in ("--profile", name)]
    named = compose(project, *profiles, "config", "--services")
    assert set(named.split()) == SERVICES
    size = ["--workloads", "digits-mlp", "--strategies", "none,all-reduce", "--steps", "5", "--repeats", "1"]
    try:
        compose(project, "up", "--detach", "--scale", "worker=2", "worker")
        run = ["run", "quickstart", *size, "--provider", "cluster", "--out", "runs/out"]
        compose(project, "run", "--rm", "bench", *run)
        results = {record["strategy"]: record for record in records(project / "runs" / "out")}
        assert results["all-reduce"]["equivalence"]["equivalent"] is True
        assert results["none"]["equivalence"]["equivalent"] is False
        owner = dict(line.split("=") for line in (project / ".env").read_text().splitlines())
        report = (project / "runs" / "out" / "report.html").stat()
        assert [report.st_uid, report.st_gid] == [
            int(owner[f"STRATBENCH_{which}"]) for which in ("UID", "GID")
        ]
    finally:
        compose(project, "down", "--volumes", "--timeout", "2", check=False)
    assert left() == []
