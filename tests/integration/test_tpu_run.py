"""A run for TPU devices from the command line to its report, with CPUs in the place of the devices."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.ray, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
STRATEGIES = ("tf-tpu", "tpu-replicate", "tpu-replicate:reshard=true")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tpu") / "run"
    path = [str(Path(__file__).parent / "tpu_stand_in"), str(Path(__file__).parent), str(ROOT)]
    command = [sys.executable, "-m", "harness.cli", "run", "tpu-pod", "--provider", "local", "--repeats", "1"]
    options = ["--workloads", "digits-mlp:units=16,digits-cnn", "--strategies", ",".join(STRATEGIES)]
    options += ["--warmup", "2", "--set", "measure.window_s=0"]
    options += ["--set", "matrix.exclude=[{workload: digits-cnn, strategy: tf-tpu}]"]
    ended = subprocess.run(
        [*command, *options, "--out", str(folder), "--json"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        cwd=folder.parent,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return folder


@pytest.fixture(scope="module")
def records(run: Path) -> dict[tuple[str, str], Any]:
    """(Workload, strategy as it was asked for) → its record."""
    documents = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    suffixes = {True: ":reshard=true", False: ""}
    return {
        (record["workload"], record["strategy"] + suffixes["reshard" in record["strategy_params"]]): record
        for record in documents
    }


def test_what_replicas_compile_is_measured_and_equivalent(records: dict[tuple[str, str], Any]) -> None:
    rival, ours, _ = (records["digits-mlp", name] for name in STRATEGIES)
    for times in (ours, rival):
        assert (times["status"], times["device"]) == ("ok", "tpu")
        assert times["equivalence"]["equivalent"] is True
        assert any(note.startswith("TPU system: 4 devices") for note in times["notes"])
    assert any(note.startswith("replicas compile this strategy's graph") for note in ours["notes"])


def test_a_step_that_draws_has_no_verdict_but_its_emulation_s_word(
    records: dict[tuple[str, str], Any],
) -> None:
    message = records["digits-cnn", "tpu-replicate"]["equivalence"]
    assert message["equivalent"] is None
    assert message["reason"].startswith("its step draws random numbers")
    assert message["reason"].endswith("in float64, emulated on processors, it is equivalent")
    assert message["separable"] is False


def test_parts_of_variables_are_skipped_with_the_reason(records: dict[tuple[str, str], Any]) -> None:
    for workload in ("digits-mlp", "digits-cnn"):
        record = records[workload, STRATEGIES[2]]
        assert record["status"] == "skipped"
        assert "compare device_loop=true" in record["error"]["message"]


def test_there_is_a_report(run: Path) -> None:
    assert "tpu-replicate" in (run / "report.html").read_text()
