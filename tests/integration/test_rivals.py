"""TensorFlow's own strategies in a run: what they compute, what they send, and what they cannot run."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import probe_jobs
import pytest
from rival_processes import SERVERS, Study, captures_in, started
from watched_run import records, watched

from harness.cluster import ClusterShape
from harness.verification.captures import Captures

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


class Numbered(Seeded):
    name = "numbered"

    def train_step(self):
        self.weight = tf.Variable(tf.ones(()), name="weight")
        self.optimizer = keras.optimizers.SGD(0.0)
        self.optimizer.build([self.weight])
        return TrainStep(loss=self.loss, variables=[self.weight], optimizer=self.optimizer)

    def loss(self, batch):
        return tf.reduce_mean(batch) * self.weight

    def dataset(self, seed):
        return tf.data.Dataset.range(24).map(lambda number: tf.cast(number, tf.float32))


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
strategies: [tf-one-device, tf-mirrored, "{ONE}", tf-central-storage, tf-multi-worker-mirrored,
             "{PACKED}", tf-parameter-server]
cluster: {{workers: [1, 2], replicas_per_worker: [1, 2]}}
measure: {{warmup_steps: 1, steps: 6, rounds: 2, window_s: 0, repeats: 1}}
matrix:
  include:
    - {{workload: digits-cnn, strategy: tf-one-device}}
    - {{workload: digits-cnn, strategy: tf-mirrored, workers: 1, replicas_per_worker: 2}}
    - {{workload: digits-cnn, strategy: tf-mirrored, workers: 2, replicas_per_worker: 1}}
    - {{workload: digits-cnn, strategy: tf-central-storage, workers: 1, replicas_per_worker: 2}}
    - {{workload: word-lm, strategy: tf-central-storage, workers: 1, replicas_per_worker: 2}}
    - {{workload: digits-cnn, strategy: tf-multi-worker-mirrored, workers: 2}}
    - {{workload: digits-cnn, strategy: tf-parameter-server, workers: 2, replicas_per_worker: 1}}
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
        status, _, errors = started.finish(600.0)
        assert status == 0, errors
        assert not started.leftovers()
    yield records(elsewhere / "out")
    shutil.rmtree(elsewhere)


@pytest.mark.ray
def test_what_tensorflow_can_run_is_equivalent_copies_dropout_and_sparse_rows_included(
    run: list[dict[str, Any]],
) -> None:
    ran = {(r["workload"], r["strategy"], json.dumps(r["strategy_params"])): r for r in run if r["step_s"]}
    assert len(ran) == 9
    for record in ran.values():
        holding = [n > 0 for n in record["variable_bytes"]]
        assert holding == [True] * record["workers"], record
    for record in (r for r in ran.values() if r["strategy"] != SERVERS):
        assert record["status"] == "ok"
        assert record["class"] == "exact"
        assert record["equivalence"]["equivalent"] is True, record
        assert record["transform_s"] is record["import_s"] is record["nodes_after"] is None
        merges = record["workload"] == "digits-cnn" and record["workers"] * record["replicas"] > 1
        assert any("not synchronised during training" in note for note in record["notes"]) is merges


@pytest.mark.ray
def test_it_sends_what_is_predicted(run: list[dict[str, Any]]) -> None:
    for record in run:
        if record["step_s"] and record["workers"] == 1:
            assert record["tcp_bytes_per_step"] == record["payload_bytes_per_step"] == 0
        elif record["step_s"] and record["workload"] == "digits-cnn" and record["strategy"] != SERVERS:
            # Small messages: what frames and names cost shows.
            sent = record["tcp_bytes_per_step"]
            assert record["payload_bytes_per_step"] < sent < 1.1 * record["payload_bytes_per_step"]


@pytest.mark.ray
def test_what_it_cannot_run_is_skipped_with_the_reason(run: list[dict[str, Any]]) -> None:
    skipped = [r for r in run if r["status"] == "skipped"]
    assert len(skipped) == len(run) - 9
    assert {r["error"]["type"] for r in skipped} == {"unsupported"}
    messages = {(r["workload"], r["error"]["stage"], r["error"]["message"]) for r in skipped}
    reasons = {
        ("digits-cnn", "plan", "keeps replicas within one process, got 2 workers"),
        ("digits-cnn", "plan", "makes one replica of all CPUs of a worker, got 2 replicas per worker"),
        ("digits-cnn", "transform", "must specify an aggregation method to update a AggregatingVariable"),
        ("mine.py:Seeded", "transform", "got operations with seeds of their own; use keras.random"),
        ("mine.py:Accumulates", "transform", "must be able to trace it, got RuntimeError"),
    }
    for workload, stage, words in reasons:
        assert any(t[:2] == (workload, stage) and words in t[2] for t in messages), words


@pytest.mark.ray
def test_servers_are_held_to_no_equivalence_and_tell_how_they_were_set_up(run: list[dict[str, Any]]) -> None:
    (record,) = (r for r in run if r["strategy"] == SERVERS and r["step_s"])
    assert record["status"] == "ok"
    assert record["class"] == "statistical"
    assert record["equivalence"]["checked"] is False
    assert record["step_s"]["n"] == 6
    assert record["loss"][-1] < record["loss"][0]
    # Whoever is faster makes more closures, so that bytes differ; both push and pull.
    (_, sent), (received, _) = record["tcp_matrix"]
    assert sent > 0
    assert received > 0
    assert any(note.startswith("parameter servers on 2 of 2 workers") for note in record["notes"])
    assert any("worker 0 made" in note and "worker 1 made" in note for note in record["notes"])


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Captures]:
    with captures_in(tmp_path_factory.mktemp("captures"), n_batches=3, n_least=2) as captures:
        yield captures


@pytest.fixture
def mirrored(captures: Captures) -> Study:
    shape = ClusterShape(workers=1, replicas_per_worker=2)
    return Study.of(captures, "digits-mlp:units=16", "tf-mirrored", shape)


def test_the_check_finds_a_rival_whose_replicas_count_for_less(mirrored: Study, tmp_path: Path) -> None:
    with started(mirrored.plan, tmp_path) as processes:
        right = mirrored.outcome(processes, 2)
        processes.call(probe_jobs.halve_shares, [()], timeout_s=120)
        broken = mirrored.outcome(processes, 2)
    verdicts = [mirrored.reference(2).judge(outcome).equivalent for outcome in (right, broken)]
    assert verdicts == [True, False]
    assert all(loss > 0 for loss in (*right.losses, *broken.losses))


def test_the_check_finds_a_rival_without_sums_over_replicas(mirrored: Study, tmp_path: Path) -> None:
    with started(mirrored.plan, tmp_path, probe_jobs.drop_sum_over_replicas) as processes:
        outcome = mirrored.outcome(processes, 2)
    assert mirrored.reference(2).judge(outcome).equivalent is False
    assert all(loss > 0 for loss in outcome.losses)


def test_a_lone_worker_with_a_server_computes_what_the_reference_does(
    captures: Captures, tmp_path: Path
) -> None:
    workload = "word-lm:units=8,embedding=4,vocabulary=50,optimizer=adagrad"
    study = Study.of(captures, workload, SERVERS, ClusterShape(workers=1))
    with started(study.plan, tmp_path) as processes:
        assert study.verdict(processes, 2).equivalent is True
        processes.call(probe_jobs.halve_closures, [()], timeout_s=120)
        assert study.verdict(processes, 2).equivalent is False


def test_every_worker_takes_its_own_share_of_each_batch_in_turn(captures: Captures, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    study = Study.of(captures, f"{tmp_path}/mine.py:Numbered", SERVERS, ClusterShape(workers=2))
    with started(study.plan, tmp_path) as processes:
        study.make_ready(processes)
        losses, workers = processes.call_one(0, probe_jobs.closures, (10,), timeout_s=120)
    for worker in range(2):
        own = [loss for loss, by in zip(losses, workers, strict=True) if by == worker]
        # The numbers 0 to 23 in batches of 8, of which each worker has a half.
        assert own == [8.0 * (step % 3) + 4.0 * worker + 1.5 for step in range(len(own))]
