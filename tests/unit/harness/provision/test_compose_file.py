"""What compose.yaml promises of every service, whoever adds one."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.provision.ray.settings import NODE_VARIABLES

ROOT = Path(__file__).parents[4]
DOCUMENT: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = DOCUMENT["services"]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_no_more_rights_than_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert re.search(r"10001.*:.*10001", service["user"])
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "pid", "ipc", "devices"} & set(service)
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert not any("docker.sock" in volume for volume in service.get("volumes", []))


def test_the_token_is_a_file_everywhere() -> None:
    (secret,) = DOCUMENT["secrets"].values()
    assert set(secret) == {"file"}
    variables = {
        name: value for each in SERVICES.values() for name, value in each.get("environment", {}).items()
    }
    assert "RAY_AUTH_TOKEN" not in variables
    assert variables["RAY_AUTH_TOKEN_PATH"] == "/run/secrets/ray_token"


@pytest.mark.parametrize("name", ["head", "worker", "bench"])
def test_its_nodes_have_the_settings_of_all_nodes(name: str) -> None:
    assert NODE_VARIABLES.items() <= SERVICES[name]["environment"].items()


def test_the_users_own_numbers_are_not_for_everybody() -> None:
    kept = subprocess.run(
        ["git", "ls-files", ".env", "runs", "build"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert kept.stdout == ""


def test_workers_have_two_networks_and_only_that_of_control_leads_outside() -> None:
    assert SERVICES["worker"]["networks"] == ["control", "data"]
    assert SERVICES["head"]["networks"] == ["control"]
    assert DOCUMENT["networks"]["data"]["internal"] is True


def test_it_can_be_scaled_and_read_by_both_versions() -> None:
    assert "name" not in DOCUMENT
    assert not any("container_name" in service for service in SERVICES.values())


def test_its_files_are_made_once_and_are_the_users_own(tmp_path: Path) -> None:
    script = ROOT / "harness" / "provision" / "compose" / "files"
    token = tmp_path / "build" / "compose" / "ray-token"
    seen = set()
    for _ in range(2):
        subprocess.run([script], cwd=tmp_path, check=True)
        seen.add(token.read_text())
    (told,) = seen
    assert re.fullmatch(r"[0-9a-f]{64}", told)
    assert token.parent.stat().st_mode & 0o777 == 0o700
    owner = 10001 if os.geteuid() == 0 else os.geteuid()
    assert (tmp_path / ".env").read_text().startswith(f"STRATBENCH_UID={owner}\n")
    assert (tmp_path / "runs").stat().st_uid == owner
