"""Results of a whole step beside its loss: fetched of each shard, and reduced by its rule."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from cases import case_of_model
from model import BATCH_SIZE, on_labelled, variable

from harness.verification.reference import compared, returned
from harness.verification.worker.check import check
from harness.verification.worker.in_process import InProcessCluster, programs_of
from strategies.ir.train_graph import Result

N_CLASSES = 4


def tells_much():
    w, b = variable("w", 3, N_CLASSES), variable("b", N_CLASSES)

    @tf.function
    def train(batch):
        x, labels = batch
        with tf.GradientTape() as tape:
            logits = x @ w + b
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        right = tf.argmax(logits, 1, tf.int32) == labels
        messages = {
            "loss": loss,
            "accuracy": tf.reduce_mean(tf.cast(right, tf.float32)),
            "counts": {"right": tf.reduce_sum(tf.cast(right, tf.int32))},
            "counts/right": tf.size(labels),
            "logits": logits,
            "bias": b + 0.0,
            "named": tf.constant("steps"),
            "rows": tf.RaggedTensor.from_row_splits(labels, [0, tf.size(labels)]),
        }
        gradients = tape.gradient(loss, [w, b])
        for v, gradient in zip([w, b], gradients, strict=True):
            v.assign_sub(0.1 * gradient)
        return {**messages, "norm": tf.linalg.global_norm(gradients), "updated": tf.reduce_sum(w)}

    return on_labelled(train)


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return case_of_model(tells_much(), tmp_path_factory.mktemp("case"))


def test_a_capture_says_what_is_told_and_what_is_not(case):
    assert {r.name: r.rule for r in case.step.results} == {
        "accuracy": "mean",
        "counts/right": "sum",
        "counts/right__1": "sum",
        "logits": "concatenate",
        "bias": "per-replica",
        "named": "per-replica",
    }
    later, others, ragged = case.step.notes
    assert "accuracy, bias, counts/right, counts/right__1, logits, named" in later
    assert "norm, updated" in others
    assert "rows" in ragged


@pytest.mark.parametrize(
    ("strategy", "params", "replicas"),
    [
        ("all-reduce", {}, (2, 1)),
        ("ps", {}, (2, 2)),
        ("partitioned-ps", {}, (1, 1)),
        ("sharded-update", {}, (1, 1)),
        ("all-reduce", {"accumulate": 2}, (1, 1)),
        ("ps", {"backup": 0, "local_proxy_variable": True}, (1, 1)),
        ("single", {}, (1,)),
    ],
)
def test_results_are_those_of_the_whole_batch(case, strategy, params, replicas):
    plan = case.plan(strategy, replicas, **params)
    checkup = check(case.step, case.initial, plan, case.batches)
    assert checkup.verdict.equivalent
    assert len(checkup.outcome.results) == len(case.step.results)
    last = {result.name: result for result in checkup.outcome.results}
    for built, expected in zip(checkup.outcome.results, checkup.reference.outcome.results, strict=True):
        assert (built.name, built.weights) == (expected.name, expected.weights)
    comparison = compared(checkup.outcome.results, checkup.reference.outcome.results)
    assert [row.error for row in comparison] == pytest.approx([0.0] * len(comparison), abs=1e-12)
    # The labels of the last batch tell what the reduced values must be, whatever shards there are.
    logits, labels = last["logits"].reduced(), case.batches[-1][1]
    assert logits.shape == (BATCH_SIZE, N_CLASSES)
    n_right = int(np.sum(np.argmax(logits, 1) == labels))
    assert 0 < n_right < BATCH_SIZE
    assert last["counts/right"].reduced() == n_right
    assert last["accuracy"].reduced() == pytest.approx(n_right / BATCH_SIZE)
    assert last["bias"].reduced() is None


def test_the_last_batch_tells_even_when_it_is_smaller(case):
    batches = [*case.batches[:-1], [part[:5] for part in case.batches[-1]]]
    checkup = check(case.step, case.initial, case.plan("all-reduce", (1, 1)), batches)
    assert {r.name: r.reduced() for r in checkup.outcome.results}["logits"].shape == (5, N_CLASSES)


def test_timed_steps_fetch_no_more_than_losses(case):
    programs = programs_of(case.step, case.plan("all-reduce", (1, 1)))
    with InProcessCluster(programs, case.initial) as cluster:
        cluster.step(case.batches[0])
        assert all(session.further == () for session in cluster.sessions)


def test_another_shards_result_is_told_as_an_error(case):
    accuracy = next(r for r in case.step.results if r.name == "accuracy")
    expected = returned([(accuracy, np.float64(0.5))])
    for value, other, error in [(1.0, np.nan, np.inf), (1.0, np.inf, np.inf), (np.nan, np.nan, 0.0)]:
        value_ = returned([(accuracy, np.float64(value))])
        (message,) = compared(value_, returned([(accuracy, np.float64(other))]))
        assert message.error == error
    (message,) = compared(returned([(accuracy, np.float64(0.25))]), expected)
    assert (message.value, message.reference_value, message.error) == (0.25, 0.5, 0.5)


@pytest.mark.parametrize(
    ("rule", "values", "reduced"),
    [
        ("sum", [np.int8(100), np.int8(100)], 200),
        ("sum", [np.uint64(2**63), np.uint64(1)], 2**63 + 1),
        ("concatenate", [np.zeros((2, 3)), np.zeros((2, 4))], None),
        ("per-replica", [np.complex64(1j), np.complex64(1j)], None),
    ],
)
def test_what_is_told_of_unusual_results(rule, values, reduced):
    returned_values = [
        (Result(name="r", tensor="r", rule=rule, rank=rank, weight=0.5), value)
        for rank, value in enumerate(values)
    ]
    (message,) = compared(returned(returned_values), returned(returned_values))
    assert json.loads(json.dumps(asdict(message)))["value"] == reduced
    assert message.error == 0.0


def test_shards_are_ordered_by_rank_and_weighted_by_examples(case):
    accuracy = next(r for r in case.step.results if r.name == "accuracy")
    (value_,) = returned(
        [
            (replace(accuracy, rank=1, weight=0.25), np.float64(1.0)),
            (replace(accuracy, rank=0, weight=0.75), np.float64(0.0)),
        ]
    )
    assert [float(value) for value in value_.per_shard] == [0.0, 1.0]
    assert value_.reduced() == pytest.approx(0.25)
