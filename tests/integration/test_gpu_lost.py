"""Runs on a GPU that TensorFlow cannot use: none of their results is a GPU's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from watched_run import records

pytestmark = [pytest.mark.tensorflow, pytest.mark.ray, pytest.mark.timeout(240)]

HERE = Path(__file__).parent
EXPERIMENT = """
name: lost
workloads: [linear-regression]
strategies: [single, tf-one-device]
cluster: {provider: local, device: gpu, workers: 1}
measure: {warmup_steps: 2, steps: 4, repeats: 1, trace: false}
"""


def ended(folder: Path, command: list[str], **environment: str) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join(map(str, (HERE / "gpu_stand_in", HERE, HERE.parents[1])))
    return subprocess.run(
        [sys.executable, "-m", "harness.cli", *command],
        env={**os.environ, "PYTHONPATH": path, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.parametrize(
    ("environment", "reasons"),
    [
        ({}, {"single": "libcusolver.so.99", "tf-one-device": "libcusolver.so.99"}),
        (
            {"SEEN": "1"},
            {
                "single": "no operation ran on task:0/device:GPU:0",
                "tf-one-device": "TensorFlow made devices of 0 of 1 GPUs",
            },
        ),
    ],
)
def test_a_run_fails_with_the_reason(
    tmp_path: Path, environment: dict[str, str], reasons: dict[str, str]
) -> None:
    (tmp_path / "lost.yaml").write_text(EXPERIMENT)
    run = ended(tmp_path, ["run", "lost.yaml", "--out", "out"], **environment)
    assert run.returncode == 1, run.stderr
    failed = {record["strategy"]: record for record in records(tmp_path / "out")}
    assert {(record["status"], record["error"]["type"]) for record in failed.values()} == {
        ("failed", "no-device")
    }
    assert {record["method"]["tf32"] for record in failed.values()} == {True}
    for strategy, reason in reasons.items():
        assert reason in failed[strategy]["error"]["message"]


def test_a_verification_fails_with_the_library(tmp_path: Path) -> None:
    verify = ["verify", "linear-regression", "--strategy", "single", "--workers", "1", "--device", "gpu"]
    failed = ended(tmp_path, verify)
    assert failed.returncode == 1
    assert "TensorFlow sees 0 GPUs where the worker has 1: it cannot open libcusolver.so.99" in failed.stderr
