"""A run whose steps take batches of the datasets' own pipelines: fast, slow, and one that breaks."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.errors import EXIT_USAGE
from harness.records.steps_file import read_steps

pytestmark = [pytest.mark.ray, pytest.mark.tensorflow]

WORKLOADS = """
import time

import keras
import numpy as np
import tensorflow as tf

from workloads import TrainStep


class Layers:
    name, batch_size, flops_per_example = "layers", 16, None
    depth, pause_s, n_read, breaks_at = 32, 0.0, 0, None

    def train_step(self):
        kernel = tf.Variable(0.05 * tf.random.normal((512, 512)))
        optimizer = keras.optimizers.SGD(0.001)
        optimizer.build([kernel])

        def loss(batch):
            for _ in range(self.depth):
                batch = tf.tanh(batch @ kernel)
            return tf.reduce_mean(tf.square(batch))

        return TrainStep(loss=loss, variables=[kernel], optimizer=optimizer)

    def dataset(self, seed):
        rows = np.random.default_rng(seed).normal(size=(32, 512)).astype(np.float32)
        return tf.data.Dataset.from_tensor_slices(rows).map(self.read)

    def read(self, row):
        def read():
            self.n_read += 1
            if self.n_read == self.breaks_at:
                raise ValueError("this row is broken")
            time.sleep(self.pause_s)
            return np.float32(0)

        return row + tf.ensure_shape(tf.py_function(read, [], tf.float32), ())


class Slow(Layers):
    name, depth, pause_s = "slow", 1, 0.01


class Broken(Layers):
    name, depth, breaks_at = "broken", 1, 200
"""
STRATEGIES = ("single", "all-reduce", "tf-parameter-server")


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("run")
    (folder / "mine.py").write_text(WORKLOADS)
    workloads = ",".join(f"mine.py:{name}" for name in ("Layers", "Slow", "Broken"))
    sizes = ["--steps", "6", "--repeats", "1", "--warmup", "4"]
    settings = ["measure.rounds=2", "measure.window_s=0", "measure.trace=false"]
    settings += ["matrix.exclude=[{workload: 'mine.py:Broken', strategy: all-reduce}]"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "harness.cli", "run", "quickstart", "--input", "pipeline"),
            *("--workloads", workloads, "--strategies", ",".join(STRATEGIES), *sizes),
            *(word for setting in settings for word in ("--set", setting)),
            *("--out", "out"),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == EXIT_USAGE, done.stderr  # the broken one is its user's mistake
    lines = (folder / "out" / "results.jsonl").read_text().splitlines()
    results: list[dict[str, Any]] = [{**json.loads(line), "out": folder / "out"} for line in lines]
    assert "input-bound" in done.stdout
    return results


def of(records: list[dict[str, Any]], workload: str, status: str = "ok") -> dict[str, dict[str, Any]]:
    return {
        record["strategy"]: record
        for record in records
        if record["workload"] == f"mine.py:{workload}" and record["status"] == status
    }


def test_a_slow_dataset_binds_every_strategy_and_a_fast_one_none(records: list[dict[str, Any]]) -> None:
    fast, slow = of(records, "Layers"), of(records, "Slow")
    assert set(fast) == set(slow) == set(STRATEGIES[:2])
    # A step of the fast one takes far longer than its examples, and the other way round.
    assert [record["input_s"]["bound"] for record in slow.values()] == [True] * 2
    assert not fast["single"]["input_s"]["bound"]
    for name, record in slow.items():
        assert record["input_s"]["share"] > fast[name]["input_s"]["share"]
        assert len(record["input_s"]["mean_of_workers"]) == record["workers"]
        assert record["method"]["input"] == "pipeline"


def test_every_wait_is_in_its_step(records: list[dict[str, Any]]) -> None:
    for record in of(records, "Slow").values():
        steps = read_steps((record["out"] / "cases" / record["case"] / "0" / "steps.parquet").read_bytes())
        assert steps.input_s is not None
        assert (steps.input_s >= 0).all()
        assert (steps.input_s <= steps.end_s - steps.start_s).all()


def test_what_is_computed_is_checked_all_the_same(records: list[dict[str, Any]]) -> None:
    assert of(records, "Layers")["all-reduce"]["equivalence"]["equivalent"] is True


def test_a_dataset_that_breaks_fails_its_cases_by_name(records: list[dict[str, Any]]) -> None:
    for record in of(records, "Broken", "failed").values():
        assert record["error"]["type"] == "user-error"
        assert "workload broken: reading the dataset failed" in record["error"]["message"]
        assert "this row is broken" in record["error"]["message"]
    assert "single" in of(records, "Broken", "failed")


def test_a_coordinator_has_no_pipeline(records: list[dict[str, Any]]) -> None:
    (skipped,) = of(records, "Layers", "skipped").values()
    assert skipped["strategy"] == "tf-parameter-server"
    assert "measure.input=pipeline" in skipped["error"]["message"]
