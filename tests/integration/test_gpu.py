"""Workers with GPUs, where there are some: what they see, what they take of it, and that a run is right."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import gpu_jobs
import pytest
from watched_run import records, watched

from harness.cluster import ClusterShape
from harness.provision import local
from harness.provision.accelerators import host_devices
from harness.worker.jobs.arithmetic import check_exactly, set_tf32
from harness.worker.process.job import JobState

pytestmark = [pytest.mark.gpu, pytest.mark.ray]

HERE = Path(__file__).parent
EXPERIMENT = """
name: gpus
workloads: [digits-mlp]
strategies: [single, all-reduce, ps]
cluster: {{provider: local, device: gpu, workers: {workers}, replicas_per_worker: {replicas}}}
measure: {{warmup_steps: 2, steps: 10, repeats: 1}}
"""


def used_mib(uuid: str) -> int:
    query = ["nvidia-smi", f"--id={uuid}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout)


def test_a_worker_sees_its_own_gpu_and_takes_what_it_needs_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(HERE), *filter(None, sys.path))))
    first = host_devices().gpus[0].uuid
    before_mib = used_mib(first)
    shape = ClusterShape(workers=1, device="gpu")
    with (
        local.start(shape, "test-gpu", tmp_path / "logs") as cluster,
        cluster.open_session(range(1), [tmp_path / "worker-0.log"]) as processes,
    ):
        seen = processes.call_one(0, gpu_jobs.multiply, (), timeout_s=120)
        taken_mib = used_mib(first) - before_mib
    assert seen == {"visible": first, "n_gpus": 1, "device": "GPU"}
    # The context and libraries take some hundreds; TensorFlow would else have taken nearly all there is.
    assert taken_mib < gpu_jobs.MOST_MIB


@pytest.mark.parametrize("arithmetic", [check_exactly, partial(set_tf32, tf32=False)])
def test_products_and_convolutions_round_as_float32_without_tf32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arithmetic: Callable[[JobState], None]
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(HERE), *filter(None, sys.path))))
    with (
        local.start(ClusterShape(workers=1, device="gpu"), "test-gpu", tmp_path / "logs") as cluster,
        cluster.open_session(range(1), [tmp_path / "worker-0.log"]) as processes,
    ):
        processes.call_one(0, arithmetic, (), timeout_s=120)
        errors = processes.call_one(0, gpu_jobs.rounding, (), timeout_s=120)
    # TF32 rounds each factor to 11 bits, float32 to 24.
    assert max(errors.values()) < 1e-5


@pytest.mark.parametrize(("workers", "replicas"), [(1, 1), (1, 2), (2, 1)])
def test_a_run_computes_what_one_device_computes(tmp_path: Path, workers: int, replicas: int) -> None:
    n_gpus = len(host_devices().gpus)
    if workers * replicas > n_gpus:
        pytest.skip(f"{workers * replicas} GPUs are needed, got {n_gpus}")
    (tmp_path / "gpus.yaml").write_text(EXPERIMENT.format(workers=workers, replicas=replicas))
    with watched(["run", "gpus.yaml", "--out", "out"], tmp_path) as run:
        status, _, errors = run.finish(500.0)
    assert status == 0, errors
    results = {record["strategy"]: record for record in records(tmp_path / "out")}
    assert {record["device"] for record in results.values()} == {"gpu"}
    assert all(record["equivalence"]["equivalent"] for record in results.values())
    for record in results.values():
        kinds, use, stability = record["machine"]["gpus"], record["gpus"], record["stability"]
        assert all(kind["model"] and kind["driver"] and kind["cuda"] for kind in kinds)
        assert use["peak_bytes"] > 0
        unknown = {name for name, value in use.items() if value is None} - {"why_none"}
        assert use["why_no"].keys() == unknown
        unknown = {name for name, value in stability.items() if "gpu" in name and value is None}
        assert stability["why_no_gpu"].keys() == unknown
    assert {record["equivalence"]["dtype"] for record in results.values()} == {"model"}
    assert {record["method"]["tf32"] for record in results.values()} == {True}
