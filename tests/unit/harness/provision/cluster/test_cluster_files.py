"""The ready-made files that bring up Ray clusters: Ray accepts them, and their parts agree."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.cluster import Slice
from harness.provision.cluster.tpu_slices import facts_of
from harness.provision.ray.settings import NODE_VARIABLES

ROOT = Path(__file__).parents[5]
FOLDER = ROOT / "harness" / "provision" / "cluster" / "files"
LAUNCHER = ["tpu-vm.yaml", "gpu-vm.yaml"]
KUBERAY = "kuberay-tpu.yaml"
SLICE = facts_of(Slice(accelerator="v4", topology="2x2x1"))


def document(name: str) -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text())
    return parsed


def pods() -> list[dict[str, Any]]:
    spec = document(KUBERAY)["spec"]
    return [group["template"]["spec"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]


def test_every_file_is_tested() -> None:
    assert {path.name for path in FOLDER.glob("*.yaml")} == {*LAUNCHER, KUBERAY}


@pytest.mark.parametrize("name", LAUNCHER)
def test_ray_accepts_launcher_files(name: str) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(document(name)))


@pytest.mark.parametrize("name", LAUNCHER)
def test_machines_with_gpus_terminate_on_maintenance_and_slices_have_one_kind(name: str) -> None:
    for node_type in document(name)["available_node_types"].values():
        node = node_type["node_config"]
        if "guestAccelerators" in node:
            assert node["scheduling"]["onHostMaintenance"] == "TERMINATE"
        if "machineType" not in node:
            assert ("acceleratorType" in node) != ("acceleratorConfig" in node)


def test_pods_mount_their_volumes_alone() -> None:
    for pod in pods():
        volumes = {volume["name"] for volume in pod["volumes"]}
        mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
        assert mounted <= volumes


@pytest.mark.parametrize("name", LAUNCHER)
def test_machines_have_the_settings_of_all_nodes_and_the_token_in_a_file(name: str) -> None:
    parsed = document(name)
    options = parsed["docker"]["run_options"]
    variables = dict(
        option.removeprefix("--env=").split("=", 1) for option in options if option.startswith("--env=")
    )
    assert variables.pop("RAY_AUTH_TOKEN_PATH") == "/run/stratbench/token"
    assert variables == NODE_VARIABLES
    assert parsed["file_mounts"] == {"/run/stratbench": parsed["metadata"]["secret"]}


def test_pods_have_the_settings_of_all_nodes_and_the_token_in_a_file() -> None:
    for pod in pods():
        (container,) = pod["containers"]
        variables = {variable["name"]: variable["value"] for variable in container["env"]}
        assert variables.pop("RAY_AUTH_TOKEN_PATH") == "/run/stratbench/token"
        assert variables == NODE_VARIABLES
        (mount,) = [mount for mount in container["volumeMounts"] if mount["mountPath"] == "/run/stratbench"]
        (volume,) = [volume for volume in pod["volumes"] if volume["name"] == mount["name"]]
        assert volume["secret"]["secretName"] == "stratbench-token"


def test_only_the_head_has_a_port_for_clients_and_no_service_leads_there() -> None:
    for name in LAUNCHER:
        parsed = document(name)
        assert "--ray-client-server-port=10001" in " ".join(parsed["head_start_ray_commands"])
        assert "client" not in " ".join(parsed["worker_start_ray_commands"])
    spec = document(KUBERAY)["spec"]
    assert spec["headGroupSpec"]["rayStartParams"]["ray-client-server-port"] == "10001"
    assert [port["containerPort"] for port in pods()[0]["containers"][0]["ports"]] == [6379]
    assert "ports" not in pods()[1]["containers"][0]


def test_slices_have_the_hosts_and_chips_of_their_kind() -> None:
    parsed = document("tpu-vm.yaml")
    assert parsed["metadata"]["slice"] == SLICE.kind
    assert parsed["available_node_types"]["slice"]["resources"] == {"TPU": SLICE.chips_per_host}
    (group,) = document(KUBERAY)["spec"]["workerGroupSpecs"]
    pod = group["template"]["spec"]
    assert group["numOfHosts"] == SLICE.n_hosts
    assert int(pod["containers"][0]["resources"]["limits"]["google.com/tpu"]) == SLICE.chips_per_host
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "2x2x1"
    assert "cloud.google.com/gke-tpu-accelerator" in pod["nodeSelector"]


def test_ray_is_of_the_version_in_the_images() -> None:
    lock = (ROOT / ".ci" / "lock" / "worker-tpu.txt").read_text()
    assert f"\nray=={document(KUBERAY)['spec']['rayVersion']} " in lock
