"""A checkpoint is the model's: saved under one strategy and shape, training goes on under any other, or none.

By default few moves, which touch every family; with `--all-cases` more.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]
pytest.importorskip("tensorflow")

import keras
import tensorflow as tf
from cases import Case, case_of
from checkpointing import restored, save, steps

from harness.verification.reference import Outcome
from harness.verification.worker.in_process import InProcessCluster, programs_of
from harness.worker.session.capture_store import InitialValues
from strategies.capture.capture import capture
from strategies.ir.variable import Fresh
from strategies.plan.schema import Plan
from workloads import TrainStep, registry
from workloads.data.examples import examples_of

GUIDE = Path(__file__).parents[2] / "docs" / "checkpoints.md"
RATE = 1e-4
BY_TOPK = (("compressor", "topk"), ("compressor_ratio", 0.1))
BY_POWER = (("compressor", "powersgd"), ("compressor_rank", 2))


@dataclass(frozen=True)
class Under:
    """A strategy on a number of replicas for each worker."""

    strategy: str
    replicas: tuple[int, ...]
    params: tuple[tuple[str, Any], ...] = ()

    def plan(self, case: Case) -> Plan:
        return case.plan(self.strategy, self.replicas, **dict(self.params))

    def __str__(self) -> str:
        return "-".join((self.strategy, "+".join(map(str, self.replicas)), *(str(v) for _, v in self.params)))


PS, ALL_REDUCE, SINGLE = Under("ps", (2, 1)), Under("all-reduce", (1, 1)), Under("single", (1,))
SHARDED = Under("sharded-ps", (1, 1, 1), (("min_bytes", 1),))
SHARDED_UPDATE = Under("sharded-update", (1, 1), (("min_bytes", 1),))
FULLY_SHARDED = Under("fully-sharded", (2, 1), (("min_bytes", 1),))
CORES = Under("tpu-replicate", (2, 1))
CORES_IN_PARTS = Under("tpu-replicate", (1, 1), (("reshard", True),))
# Where examples do not meet, shards of another number of replicas change nothing.
MOVES = [
    ("digits-mlp", "momentum", PS, ALL_REDUCE),
    ("digits-mlp", "momentum", Under("partitioned-ps", (2, 1)), SINGLE),
    ("digits-mlp", "adamw-clipped", SHARDED_UPDATE, ALL_REDUCE),
    ("digits-mlp", "momentum", FULLY_SHARDED, Under("partitioned-ps", (1, 1))),
    ("word-lm", "adam", SHARDED_UPDATE, FULLY_SHARDED),
    ("digits-cnn", "rmsprop", Under("ps-load-balancing", (1, 1)), Under("partitioned-all-reduce", (2,))),
    ("digits-mlp", "momentum", CORES, ALL_REDUCE),
    ("digits-mlp", "momentum", ALL_REDUCE, CORES_IN_PARTS),
    ("digits-mlp", "adamw-clipped", CORES_IN_PARTS, SINGLE),
]
MORE_MOVES = [
    ("digits-mlp", "momentum", ALL_REDUCE, SINGLE),
    ("digits-mlp", "momentum", SINGLE, SHARDED),
    ("word-lm", "adam", SINGLE, Under("partitioned-ps", (1, 1))),
    ("word-lm", "adam", Under("uneven-partitioned-ps", (1, 1)), Under("all-reduce", (2, 1))),
    ("word-lm", "adam", Under("random-axis-partitioned-all-reduce", (2,), (("seed", 3),)), SHARDED),
    ("wide-mlp", "adamw-clipped", SHARDED, PS),
    ("wide-mlp", "adamw-clipped", PS, Under("hierarchical-all-reduce", (2, 1))),
    ("digits-cnn", "rmsprop", Under("all-reduce", (2,)), Under("partitioned-ps", (1, 1))),
]
COMPRESSED = [
    (Under("all-reduce", (2, 1), BY_POWER), Under("all-reduce", (1, 2), BY_POWER)),
    (Under("partitioned-ps", (1, 1), BY_TOPK), Under("partitioned-ps", (1, 1), BY_TOPK)),
]
MORE_COMPRESSED = [
    (Under("all-reduce", (2, 1), BY_TOPK), Under("all-reduce", (1, 1, 1), BY_TOPK)),
    (Under("ps", (1, 1), BY_POWER), Under("ps-load-balancing", (1, 1), BY_POWER)),
    (Under("all-reduce", (1, 1), BY_TOPK), Under("ps", (1, 1), BY_TOPK)),
]
RESIDUALS = [
    (Under("all-reduce", (2, 1), BY_TOPK), Under("all-reduce", (1, 1), BY_TOPK)),
    (Under("ps", (2, 1), BY_POWER), Under("partitioned-all-reduce", (1, 1), BY_TOPK)),
]
MORE_RESIDUALS = [
    (Under("all-reduce", (1, 1), BY_TOPK), Under("ps", (1, 1, 1), BY_POWER)),
    (Under("partitioned-ps", (1, 2), BY_TOPK), Under("all-reduce", (2,), BY_POWER)),
    (Under("all-reduce", (2, 1), BY_TOPK), Under("hierarchical-all-reduce", (1, 2), BY_TOPK)),
]
MATRICES = {
    "move": (MOVES, MORE_MOVES),
    "compressed": (COMPRESSED, MORE_COMPRESSED),
    "residuals": (RESIDUALS, MORE_RESIDUALS),
    "mode": ([("staleness", 2)], [("sync", False), ("backup", 1)]),
}


def pytest_generate_tests(metafunc):
    for name, (few, more) in MATRICES.items():
        if name in metafunc.fixturenames:
            chosen = [*few, *(more if metafunc.config.getoption("--all-cases") else ())]
            metafunc.parametrize(name, chosen, ids=lambda move: "-to-".join(map(str, move[-2:])))


def test_training_goes_on_under_another_strategy_as_if_nothing_had_been(cases, tmp_path, move):
    workload, optimizer, before, after = move
    case = cases.of(workload, optimizer)
    if "tpu-replicate" in (before.strategy, after.strategy):
        case = case.with_examples(6)
    *first, last = case.batches
    steps(case, before.plan(case), first, tmp_path / "checkpoint")
    state = steps(restored(case, tmp_path / "checkpoint"), after.plan(case), [last])
    verdict = case.reference(before.replicas).judge(Outcome(values=state))
    worst = max(verdict.variables, key=lambda v: v.update_error)
    assert verdict.equivalent, f"{worst.name} is off by {worst.update_error:.1e}"
    assert verdict.tolerance < 1e-9


@pytest.mark.parametrize("under", [Under("partitioned-all-reduce", (2, 1)), CORES], ids=str)
def test_a_checkpoint_has_original_names_and_shapes_and_each_replica_s_random_state(cases, tmp_path, under):
    case = cases.of("digits-cnn", "rmsprop").for_row(under.strategy, under.replicas)
    steps(case, under.plan(case), case.batches[:2], tmp_path)
    stored = dict(tf.train.list_variables(str(tmp_path)))
    model = {v.name: list(case.initial.value(v.name).shape) for v in case.step.variables}
    seeds = [v.name for v in case.step.variables if v.rule == "per-replica"]
    assert seeds
    extra = {f"{name}@rank{rank}": model[name] for name in seeds for rank in (1, 2)}
    assert stored == {**model, **extra, "stratbench/step": []}
    assert tf.train.load_variable(str(tmp_path), "stratbench/step") == 2


def test_what_counts_from_the_start_of_a_session_is_not_saved(cases, tmp_path):
    case = cases.of("digits-mlp", "momentum")
    steps(case, case.plan("local-sgd", (1, 1), period=2), case.batches[:1], tmp_path)
    stored = {name for name, _ in tf.train.list_variables(str(tmp_path))}
    assert stored == {*(v.name for v in case.step.variables), "stratbench/step"}


def test_a_replica_that_is_new_gets_the_random_state_that_it_would_have_had(cases, tmp_path):
    """Replicas draw as often as each other: a rank's own seed and the first one's counter tell all."""
    case = cases.of("digits-cnn", "rmsprop")
    plan = Under("all-reduce", (1, 1, 1)).plan(case)
    steps(case, SINGLE.plan(case), case.batches[:2], tmp_path / "checkpoint")
    uninterrupted = steps(case, plan, case.batches)
    state = steps(restored(case, tmp_path / "checkpoint"), plan, case.batches[2:])
    seeds = [v.name for v in case.step.variables if v.seed_word is not None]
    for copy in [(name, rank) for name in seeds for rank in range(3)]:
        np.testing.assert_array_equal(state[copy], uninterrupted[copy])


def test_compressed_training_goes_on_as_if_nothing_had_been(cases, tmp_path, compressed):
    before, after = compressed
    case = cases.of("wide-mlp", "momentum")
    *first, last = case.batches
    uninterrupted = steps(case, before.plan(case), case.batches)
    steps(case, before.plan(case), first, tmp_path / "checkpoint")
    state = steps(restored(case, tmp_path / "checkpoint"), after.plan(case), [last])
    compared = 0
    for name in {name for name, _ in uninterrupted}:
        expected = {rank: value for (own, rank), value in uninterrupted.items() if own == name}
        for rank, value in ((rank, value) for (own, rank), value in state.items() if own == name):
            np.testing.assert_allclose(
                value, expected.get(rank, next(iter(expected.values()))), rtol=1e-9, atol=1e-12
            )
            compared += name.endswith("residual")
    assert compared


def test_what_is_owed_for_a_variable_in_parts_is_stored_in_its_shape(cases, tmp_path):
    case = cases.of("wide-mlp", "momentum")
    steps(case, Under("partitioned-ps", (1, 1), BY_TOPK).plan(case), case.batches[:1], tmp_path)
    stored = dict(tf.train.list_variables(str(tmp_path)))
    owed = [name for name in stored if name.endswith("/residual")]
    assert owed
    for name in owed:
        assert stored[name] == stored[name.removeprefix("stratbench/compressor/").removesuffix("/residual")]
        assert stored[f"{name}@rank1"] == stored[name]


def test_what_was_contributed_is_saved_where_updates_do_not_wait(cases, tmp_path, mode):
    case = cases.of("digits-mlp", "momentum")
    plan = case.plan("ps", (1, 1), **dict([mode]))
    state = steps(case, plan, case.batches, tmp_path)
    reader = tf.train.load_checkpoint(str(tmp_path))
    for name, value in ((name, value) for (name, rank), value in state.items() if rank is None):
        np.testing.assert_array_equal(reader.get_tensor(name), value)
    assert any((value != case.initial.value(name)).any() for (name, _), value in state.items())


@pytest.fixture(scope="module")
def steady(shared) -> Case:
    """A step of plain descent, fed with one batch again and again, whose gradient hardly changes."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    workload = registry.resolve(
        "digits-mlp", {"units": 24, "optimizer": "sgd", "learning_rate": RATE, "batch_size": 7}
    )
    captured = capture(workload.train_step(), workload.dataset(0).element_spec)
    batch = list(next(examples_of(workload, seed=0).batches(7)))
    return case_of(captured, [batch] * 4, shared / "steady-checkpoints")


def missing(steady: Case, plan: Plan, state: Any) -> float:
    """The largest part of a gradient that was neither sent nor kept, relative to its tensor's largest.

    Of what the plan compresses: a compressor of matrices has no use for what is owed for a vector.
    """
    compressed = {node.variable for node in plan.nodes if node.compressor}
    assert compressed
    exact = steps(steady, SINGLE.plan(steady), steady.batches)
    worst = 0.0
    for v in steady.step.variables:
        if v.name in compressed:
            start = steady.initial.value(v.name)
            value = next(value for (name, _), value in state.items() if name == v.name)
            sent, total = (start - value) / RATE, (start - exact[v.name, None]) / RATE
            residual = sum(
                value for (name, _), value in state.items() if name == f"compressor/{v.name}/residual"
            )
            worst = max(worst, float(np.abs(total - sent - residual).max() / np.abs(total).max()))
    return worst


def test_what_was_sent_and_kept_stays_the_sum_of_all_gradients(steady, tmp_path, residuals):
    before, after = residuals
    steps(steady, before.plan(steady), steady.batches[:2], tmp_path / "checkpoint")
    state = steps(restored(steady, tmp_path / "checkpoint"), after.plan(steady), steady.batches[2:])
    assert missing(steady, after.plan(steady), state) < 1e-3


def test_what_replicas_that_are_gone_were_owed_is_missed(steady, tmp_path, monkeypatch):
    before, after = RESIDUALS[0]
    steps(steady, before.plan(steady), steady.batches[:2], tmp_path / "checkpoint")
    own = Fresh.inherited
    monkeypatch.setattr(
        Fresh,
        "inherited",
        lambda fresh, rank, saved: own(fresh, rank, {r: v for r, v in saved.items() if r == rank}),
    )
    state = steps(restored(steady, tmp_path / "checkpoint"), after.plan(steady), steady.batches[2:])
    assert missing(steady, after.plan(steady), state) > 0.05


def build() -> tuple[keras.Model, keras.optimizers.Optimizer]:
    """Plain Keras."""
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(6, "tanh"), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    )
    return model, keras.optimizers.Adam(0.05)


def compiled() -> tuple[keras.Model, keras.optimizers.Optimizer]:
    """The same, compiled, with an optimizer that has no slots yet."""
    model, optimizer = build()
    model.compile(optimizer, "mse")
    return model, optimizer


def loss_of(model: keras.Model, batch: Any) -> tf.Tensor:
    x, y = batch
    return tf.reduce_mean(tf.square(model(x, training=True) - y))


def keras_step(model: keras.Model, optimizer: keras.optimizers.Optimizer, batch: Any) -> None:
    with tf.GradientTape() as tape:
        loss = loss_of(model, batch)
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


@pytest.fixture(scope="module")
def plain(shared) -> Case:
    """The captured step of the plain model, in its own types."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(2)
    model, optimizer = build()
    step = TrainStep(
        loss=lambda batch: loss_of(model, batch), variables=model.trainable_variables, optimizer=optimizer
    )
    spec = (tf.TensorSpec((8,)), tf.TensorSpec((1,)))
    captured = capture(step, spec)
    random = np.random.default_rng(0)
    fed = [[random.normal(size=(6, n)).astype(np.float32) for n in (8, 1)] for _ in range(3)]
    case = case_of(captured, fed, shared / "plain")
    return Case(
        step=captured.step, summary=case.summary, initial=InitialValues(shared / "plain"), batches=fed
    )


def close(left: Any, right: Any) -> None:
    np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-6)


def guide(word: str) -> str:
    """The Python of the guide that has a word in it."""
    blocks = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    (result,) = (block for block in blocks if word in block)
    return result


def test_plain_keras_goes_on_with_a_checkpoint_as_the_guide_says(plain, tmp_path):
    with InProcessCluster(programs_of(plain.step, SINGLE.plan(plain)), plain.initial) as cluster:
        for batch in plain.batches[:2]:
            cluster.step(batch)
        save(plain, cluster, tmp_path, 2)
        cluster.step(plain.batches[2])
        expected = cluster.read()
    keras.backend.clear_session()
    model, optimizer = compiled()
    exec(guide("load_checkpoint"), {"tf": tf, "model": model, "folder": str(tmp_path)})
    keras_step(model, optimizer, plain.batches[2])
    for variable in (*model.variables, *optimizer.variables):
        close(variable.numpy(), expected[variable.path, None])


def test_a_strategy_goes_on_with_what_plain_keras_has_saved_as_the_guide_says(plain, tmp_path):
    keras.backend.clear_session()
    model, optimizer = compiled()
    optimizer.build(model.trainable_variables)
    for variable in (*model.variables, *optimizer.variables):
        variable.assign(plain.initial.value(variable.path))
    for batch in plain.batches[:2]:
        keras_step(model, optimizer, batch)
    prefix = str(tmp_path / "plain")
    exec(guide("SaveV2"), {"tf": tf, "model": model, "prefix": prefix})
    state = steps(restored(plain, tmp_path / "plain"), SINGLE.plan(plain), plain.batches[2:])
    keras_step(model, optimizer, plain.batches[2])
    for variable in (*model.variables, *optimizer.variables):
        close(state[variable.path, None], variable.numpy())
