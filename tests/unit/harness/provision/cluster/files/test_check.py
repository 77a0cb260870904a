"""The ready-made files that bring up Ray clusters: a mistake in them is told before anything is started."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.cluster import Slice
from harness.errors import UsageError
from harness.provision.cluster import files
from harness.provision.cluster.files.check import check, main
from harness.provision.cluster.tpu_slices import facts_of
from harness.provision.ray.settings import NODE_VARIABLES

FOLDER = Path(files.__file__).parent
LAUNCHER = ["tpu-vm.yaml", "gpu-vm.yaml"]
KUBERAY = "kuberay-tpu.yaml"
SLICE = facts_of(Slice(accelerator="v4", topology="2x2x1"))


def document(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text())
    return found


def at(there: Any, path: str) -> Any:
    for piece in path.split("."):
        there = there[int(piece) if piece.isdigit() else piece]
    return there


def pods() -> list[dict[str, Any]]:
    spec = document(KUBERAY)["spec"]
    return [each["template"]["spec"] for each in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]


@pytest.mark.parametrize("name", [*LAUNCHER, KUBERAY])
def test_they_are_as_their_readers_take_them(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(FOLDER / name)]) == 0
    assert capsys.readouterr().err == ""
    assert {path.name for path in FOLDER.glob("*.yaml")} == {*LAUNCHER, KUBERAY}


@pytest.mark.parametrize(
    ("name", "path", "value", "told"),
    [
        ("gpu-vm.yaml", "available_node_types.gpu.node_config.scheduling", {}, "onHostMaintenance TERMINATE"),
        ("gpu-vm.yaml", "head_node_type", "haed", "head_node_type"),
        ("tpu-vm.yaml", "max_workers", 0, "max_workers"),
        (KUBERAY, "spec.workerGroupSpecs.0.numOfHosts", 4, "must have the 4 of 2x2x1"),
        (KUBERAY, "spec.workerGroupSpecs.0.template.spec.volumes", [], "which is none of volumes"),
    ],
)
def test_what_does_not_agree_is_told(name: str, path: str, value: object, told: str, tmp_path: Path) -> None:
    changed = document(name)
    parent, _, key = path.rpartition(".")
    (at(changed, parent) if parent else changed)[key] = value
    file = tmp_path / "changed.yaml"
    file.write_text(yaml.safe_dump(changed))
    with pytest.raises(UsageError, match=told):
        check(file)


@pytest.mark.parametrize(
    "text",
    [
        "- a",
        "a: [",
        "{a: 1, apiVersion: ray.io/v1}",
        "a: &a {b: *a}",
        "a: " + "[" * 1200,
        "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9) if n else 0}]\n" for n in range(9)),
    ],
)
def test_what_is_no_such_file_costs_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "it.yaml").write_text(text)
    with pytest.raises(UsageError) as raised:
        check(tmp_path / "it.yaml")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", LAUNCHER)
def test_machines_have_the_settings_of_all_nodes_and_the_token_in_a_file(name: str) -> None:
    made = document(name)
    options = made["docker"]["run_options"]
    variables = dict(
        each.removeprefix("--env=").split("=", 1) for each in options if each.startswith("--env=")
    )
    assert variables.pop("RAY_AUTH_TOKEN_PATH") == "/run/stratbench/token"
    assert variables == NODE_VARIABLES
    assert made["file_mounts"] == {"/run/stratbench": made["metadata"]["secret"]}


def test_pods_have_the_settings_of_all_nodes_and_the_token_in_a_file() -> None:
    for pod in pods():
        (container,) = pod["containers"]
        variables = {each["name"]: each["value"] for each in container["env"]}
        assert variables.pop("RAY_AUTH_TOKEN_PATH") == "/run/stratbench/token"
        assert variables == NODE_VARIABLES
        (mount,) = [each for each in container["volumeMounts"] if each["mountPath"] == "/run/stratbench"]
        (volume,) = [each for each in pod["volumes"] if each["name"] == mount["name"]]
        assert volume["secret"]["secretName"] == "stratbench-token"


def test_only_the_head_has_a_port_for_clients_and_no_service_leads_there() -> None:
    for name in LAUNCHER:
        made = document(name)
        assert "--ray-client-server-port=10001" in " ".join(made["head_start_ray_commands"])
        assert "client" not in " ".join(made["worker_start_ray_commands"])
    spec = document(KUBERAY)["spec"]
    assert spec["headGroupSpec"]["rayStartParams"]["ray-client-server-port"] == "10001"
    assert [port["containerPort"] for port in pods()[0]["containers"][0]["ports"]] == [6379]
    assert "ports" not in pods()[1]["containers"][0]


def test_slices_have_the_hosts_and_chips_of_their_kind() -> None:
    made = document("tpu-vm.yaml")
    assert made["metadata"]["slice"] == SLICE.kind
    assert made["available_node_types"]["slice"]["resources"] == {"TPU": SLICE.chips_per_host}
    assert document(KUBERAY)["spec"]["workerGroupSpecs"][0]["numOfHosts"] == SLICE.n_hosts


def test_ray_is_of_the_version_in_the_images() -> None:
    lock = (FOLDER.parents[3] / ".ci" / "lock" / "worker-tpu.txt").read_text()
    assert f"\nray=={document(KUBERAY)['spec']['rayVersion']} " in lock
