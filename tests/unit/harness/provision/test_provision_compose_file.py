"""Guarantees of compose.yaml for every service, whoever adds one."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from synthetic_run import Case, write_run

from harness.cli import main
from harness.cli.nightly.schedule import hour_of
from harness.errors import CaseError
from harness.pipeline import RunOutcome
from harness.provision.ray.settings import NODE_VARIABLES
from harness.requests import RunOptions

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
        name: value for service in SERVICES.values() for name, value in service.get("environment", {}).items()
    }
    assert "RAY_AUTH_TOKEN" not in variables
    assert variables["RAY_AUTH_TOKEN_PATH"] == "/run/secrets/ray_token"


@pytest.mark.parametrize("name", ["head", "worker", "bench", "nightly"])
def test_its_nodes_have_the_settings_of_all_nodes(name: str) -> None:
    assert NODE_VARIABLES.items() <= SERVICES[name]["environment"].items()


def test_the_users_own_numbers_are_not_for_everybody() -> None:
    process = subprocess.run(
        ["git", "ls-files", ".env", "runs", "build"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert process.stdout == ""


def test_workers_have_two_networks_and_only_that_of_control_leads_outside() -> None:
    assert SERVICES["worker"]["networks"] == ["control", "data"]
    assert SERVICES["head"]["networks"] == ["control"]
    assert DOCUMENT["networks"]["data"]["internal"] is True


def test_it_can_be_scaled_and_read_by_both_versions() -> None:
    assert "name" not in DOCUMENT
    assert not any("container_name" in service for service in SERVICES.values())


@pytest.mark.parametrize("name", sorted(SERVICES.keys() - {"bench"}))
def test_what_nights_need_is_up_again_after_a_restart(name: str) -> None:
    assert SERVICES[name]["restart"] == "unless-stopped"


def test_nights_go_on_after_a_restart_and_are_kept_on_the_host() -> None:
    service = SERVICES["nightly"]
    assert service["restart"] == "unless-stopped"
    assert service["profiles"] == ["nightly"]
    (store,) = (word for word in service["command"] if word.startswith("--store="))
    assert any(volume.startswith("./runs:/work/runs") for volume in service["volumes"])
    assert store == "--store=runs/nightly"
    assert service["working_dir"] == "/work"


def test_the_nightly_service_is_asked_for_with_options_that_exist() -> None:
    words = [re.sub(r"\$\{\w+:-(.*)\}", r"\1", word) for word in SERVICES["nightly"]["command"]]
    done = subprocess.run(
        [sys.executable, "-m", "harness.cli", *words[:2], "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for word in words[3:]:
        assert word.partition("=")[0] in done.stdout
    assert hour_of(next(word for word in words if word.startswith("--at=")).partition("=")[2])


@pytest.mark.parametrize(("age_minutes", "status"), [(None, 1), (60, 0), (27 * 60, 1)])
def test_the_nightly_service_is_healthy_while_its_last_night_is_young(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age_minutes: int | None, status: int
) -> None:
    kind, command = SERVICES["nightly"]["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    monkeypatch.chdir(tmp_path)
    store = tmp_path / "runs" / "nightly"
    arguments = ["nightly", "run", "quickstart", "--store", "runs/nightly", "--no-isolation"]
    if age_minutes is not None:
        monkeypatch.setattr("harness.pipeline.run", run_of_a_case)
        assert main(arguments) == 0
        written_s = time.time() - 60 * age_minutes
        for path in store.iterdir():
            os.utime(path, (written_s, written_s))
    # A night that fails, and what is asked of the history, say nothing of nights.
    monkeypatch.setattr("harness.pipeline.run", run_that_fails)
    assert main(arguments) == 1
    run = write_run(tmp_path / "run", [Case(workload="w", strategy="ps")], experiment_name="quickstart")
    assert main(["nightly", "import", "quickstart", str(run), "--store", "runs/nightly"]) == 0
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == status


def run_of_a_case(_spec: object, options: RunOptions) -> RunOutcome:
    assert options.out is not None
    write_run(options.out, [Case(workload="w", strategy="ps")], experiment_name="quickstart")
    return RunOutcome(run_dir=options.out)


def run_that_fails(_spec: object, _options: RunOptions) -> RunOutcome:
    raise CaseError("worker-died", "worker 1 is gone", stage="run")


def test_its_files_are_made_once_and_are_the_users_own(tmp_path: Path) -> None:
    script = ROOT / "harness" / "provision" / "compose" / "files"
    token = tmp_path / "build" / "compose" / "ray-token"
    seen = set()
    for _ in range(2):
        subprocess.run([script], cwd=tmp_path, check=True)
        seen.add(token.read_text())
    (message,) = seen
    assert re.fullmatch(r"[0-9a-f]{64}", message)
    assert token.parent.stat().st_mode & 0o777 == 0o700
    owner = 10001 if os.geteuid() == 0 else os.geteuid()
    assert (tmp_path / ".env").read_text().startswith(f"STRATBENCH_UID={owner}\n")
    assert (tmp_path / "runs").stat().st_uid == owner
