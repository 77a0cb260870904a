"""TensorFlow's own strategies in a run: what they compute, what they send, and what they cannot run."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from watched_run import records, watched

from harness.case_runner import BASELINE, JOBS, STUDY, check
from harness.options import Target
from harness.provision.base import ProcessSet
from harness.provision.serving import serving_processes
from harness.provision.solo_workers import SoloWorkers
from harness.refs import parse_strategy, parse_workload
from harness.target_study import SEED, TargetStudy, study
from harness.worker.jobs import Opened

pytestmark = pytest.mark.tensorflow

MINE = """
import keras
import tensorflow as tf

from workloads import TrainStep


class Seeded:
    name = "seeded"
    batch_size = 8
    flops_per_example = None

    def train_step(self):
        self.weight = tf.Variable(tf.ones((4, 1)), name="weight")
        self.optimizer = keras.optimizers.SGD(0.1)
        self.optimizer.build([self.weight])
        return TrainStep(loss=self.loss, variables=[self.weight], optimizer=self.optimizer)

    def loss(self, batch):
        return tf.reduce_mean(tf.nn.dropout(batch, 0.5, seed=3) @ self.weight)

    def dataset(self, seed):
        return tf.data.Dataset.from_tensor_slices(tf.ones((16, 4)))


class Whole(Seeded):
    name = "whole"

    def loss(self, batch):
        return tf.reduce_mean(batch @ self.weight)

    def train_step(self):
        step = super().train_step()

        @tf.function
        def train(batch):
            with tf.GradientTape() as tape:
                loss = step.loss(batch)
            step.optimizer.apply(tape.gradient(loss, step.variables), step.variables)
            return loss

        return train


class Accumulates(Whole):
    name = "accumulates"

    def train_step(self):
        step = Seeded.train_step(self)
        optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
        optimizer.build(step.variables)
        return TrainStep(loss=step.loss, variables=step.variables, optimizer=optimizer)
"""
PACKED = "tf-multi-worker-mirrored:communication=ring,bytes_per_pack=1000"
ONE = "tf-mirrored:cross_device_ops=reduction-to-one-device"
EXPERIMENT = f"""
name: rivals-small
workloads: [digits-cnn, "word-lm:units=8,embedding=4,vocabulary=50,optimizer=adagrad",
            "mine.py:Seeded", "mine.py:Whole", "mine.py:Accumulates"]
strategies: [tf-one-device, tf-mirrored, "{ONE}", tf-multi-worker-mirrored, "{PACKED}"]
cluster: {{workers: [1, 2], replicas_per_worker: [1, 2]}}
measure: {{warmup_steps: 1, steps: 6, repeats: 1}}
matrix:
  include:
    - {{workload: digits-cnn, strategy: tf-one-device}}
    - {{workload: digits-cnn, strategy: tf-mirrored, workers: 1, replicas_per_worker: 2}}
    - {{workload: digits-cnn, strategy: tf-mirrored, workers: 2, replicas_per_worker: 1}}
    - {{workload: digits-cnn, strategy: tf-multi-worker-mirrored, workers: 2}}
    - {{workload: word-lm, strategy: "{PACKED}", workers: 2, replicas_per_worker: 1}}
    - {{workload: "mine.py:Seeded", strategy: "{PACKED}", workers: 2, replicas_per_worker: 1}}
    - {{workload: "mine.py:Whole", strategy: "{PACKED}", workers: 2, replicas_per_worker: 1}}
    - {{workload: "mine.py:Accumulates", strategy: "{PACKED}", workers: 2, replicas_per_worker: 1}}
compare: {{baseline: tf-one-device}}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Any]]]:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "mine.py").write_text(MINE)
    (elsewhere / "small.yaml").write_text(EXPERIMENT)
    with watched(["run", "small.yaml", "--out", "out"], elsewhere) as started:
        status, _, errors = started.finish(240.0)
        assert status == 0, errors
        assert not started.leftovers()
    yield records(elsewhere / "out")
    shutil.rmtree(elsewhere)


@pytest.mark.ray
def test_what_tensorflow_can_run_is_equivalent_copies_dropout_and_sparse_rows_included(
    run: list[dict[str, Any]],
) -> None:
    ran = {(r["workload"], r["strategy"], json.dumps(r["strategy_params"])): r for r in run if r["step_s"]}
    assert len(ran) == 6
    for record in ran.values():
        assert record["status"] == "ok"
        assert record["class"] == "exact"
        assert record["equivalence"]["equivalent"] is True, record
        assert record["transform_s"] is record["import_s"] is record["nodes_after"] is None
        merges = record["workload"] == "digits-cnn" and record["workers"] * record["replicas"] > 1
        assert any("merges nothing while it trains" in note for note in record["notes"]) is merges


@pytest.mark.ray
def test_it_sends_what_is_predicted(run: list[dict[str, Any]]) -> None:
    for record in run:
        if record["step_s"] and record["workers"] == 1:
            assert record["tcp_bytes_per_step"] == record["payload_bytes_per_step"] == 0
        elif record["step_s"] and record["workload"] == "digits-cnn":
            # Small messages: what frames and names cost shows.
            sent = record["tcp_bytes_per_step"]
            assert record["payload_bytes_per_step"] < sent < 1.1 * record["payload_bytes_per_step"]


@pytest.mark.ray
def test_what_it_cannot_run_is_skipped_with_the_reason(run: list[dict[str, Any]]) -> None:
    skipped = [r for r in run if r["status"] == "skipped"]
    assert len(skipped) == len(run) - 6
    assert {r["error"]["type"] for r in skipped} == {"unsupported"}
    told = {(r["workload"], r["error"]["stage"], r["error"]["message"]) for r in skipped}
    reasons = {
        ("digits-cnn", "plan", "mirrors variables within one process, got 2 workers"),
        ("digits-cnn", "plan", "makes one replica of all CPUs of a worker, got 2 replicas per worker"),
        ("mine.py:Seeded", "transform", "got operations with seeds of their own; use keras.random"),
        ("mine.py:Accumulates", "transform", "must be able to trace it, got RuntimeError"),
        ("mine.py:Whole", "transform", "got a whole tf.function; return loss, variables and optimizer"),
    }
    for workload, stage, words in reasons:
        assert any(t[:2] == (workload, stage) and words in t[2] for t in told), words


@pytest.mark.parametrize("break_it", [None, "drop_sum_over_replicas", "halve_shares"])
def test_the_check_finds_a_rival_that_computes_something_else(
    break_it: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    target = Target(
        workload=parse_workload("digits-mlp:units=16", field="workload"),
        strategy=parse_strategy("tf-mirrored", field="strategy"),
        workers=1,
        replicas=2,
    )
    with study(target, n_batches=2) as opened, processes_of(opened, break_it) as processes:
        checked = check(processes, opened.reference(2))
    assert checked.verdict.equivalent is (break_it is None)
    assert all(loss > 0 for loss in checked.losses)


@contextmanager
def processes_of(opened: TargetStudy, break_it: str | None) -> Iterator[ProcessSet]:
    document = opened.plan.model_dump_json()
    with serving_processes(
        SoloWorkers(folder=opened.folder),
        [opened.folder / "worker.log"],
        n_devices=[2],
        server=f"{BASELINE}:start_distribution",
        settings=(document,),
    ) as processes:
        if break_it is not None:
            processes.call(f"probe_jobs:{break_it}", [()], timeout_s=60)
        args = (opened.case, SEED, str(opened.capture.folder), document, 0)
        (answer,) = processes.call(f"{BASELINE}:open_baseline", [args], timeout_s=60)
        assert isinstance(answer, Opened)
        shares = (str(opened.batches), answer.start, answer.stop)
        processes.call(f"{STUDY}:stage_batches", [shares], timeout_s=60)
        processes.call(f"{JOBS}:load", [()], timeout_s=60)
        yield processes
