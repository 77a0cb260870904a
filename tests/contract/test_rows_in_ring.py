"""Rows of sparse gradients that go through the workers' own ring end where one device's do, on all alike."""

import itertools
from dataclasses import replace

import keras
import numpy as np
import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]
tf = pytest.importorskip("tensorflow")

from cases import case_of_model
from model import (
    BATCH_SIZE,
    LABELLED,
    N_CLASSES,
    N_STEPS,
    Model,
    mean_cross_entropy,
    on_labelled,
    values,
    variable,
)
from test_mutations import after, broken, noticed

from harness.verification.worker.in_process import InProcessCluster, programs_of
from harness.worker.transport.exchange import Exchange
from strategies.numerics.collectives import hand_over_rows, take_back_rows
from strategies.passes.collectives import tcp_ring
from workloads import TrainStep

TOPOLOGIES = ((1, 1), (2, 1), (1, 1, 1), (2, 2))
# Looked up once and twice, with clipped updates, with three updates in a step, assigned before it is read.
MODELS = ("word-lm+adagrad", "word-lm+adamw-clipped", "shared-embedding", "thrice", "divided-table")
# Strategy and parameters; of tables in parts some bring no rows, of owned ones new values travel too.
OTHERS = (
    ("hierarchical-all-reduce", {}),
    ("partitioned-all-reduce", {}),
    ("sharded-update", {"min_bytes": 1}),
    ("fully-sharded", {"min_bytes": 1}),
    ("all-reduce", {"compressor": "fp16"}),
    ("all-reduce", {"chunk_size": 1}),
    ("all-reduce", {"accumulate": 2}),
)


def two_tables():
    """Rows of one axis and of two, looked up by ids of two types, and a table that only few examples read."""
    table = keras.Variable(values(9, 5), name="table", dtype="float32")
    matrices = keras.Variable(values(7, 2, 3), name="matrices", dtype="float32")
    seldom = keras.Variable(values(4, 3), name="seldom", dtype="float32")
    head = keras.Variable(values(5, N_CLASSES), name="head", dtype="float32")
    variables = [table, matrices, seldom, head]
    optimizer = keras.optimizers.Adagrad(0.1)
    optimizer.build(variables)

    def loss(batch):
        rows, labels = batch
        words = tf.nn.embedding_lookup(table.value, tf.concat([labels, labels + 4], 0))
        ids = tf.cast(labels, tf.int64) * 2 % 7
        turned = tf.einsum("bi,bji->bj", rows, tf.nn.embedding_lookup(matrices.value, ids))
        # None for who has no such example.
        rare = tf.nn.embedding_lookup(seldom.value, tf.boolean_mask(labels, rows[:, 0] > 1.0))
        scores = (words[: tf.shape(labels)[0]] + words[tf.shape(labels)[0] :]) @ head.value
        scores += tf.reduce_sum(turned, axis=1, keepdims=True)
        return mean_cross_entropy(labels, scores) + tf.reduce_sum(rare**2) / BATCH_SIZE

    random = np.random.default_rng(3)
    fed = [
        [
            random.normal(size=(BATCH_SIZE, 3)).astype(np.float32),
            random.integers(0, N_CLASSES, BATCH_SIZE).astype(np.int32),
        ]
        for _ in range(N_STEPS)
    ]
    step = TrainStep(loss=loss, variables=variables, optimizer=optimizer)
    return Model(step=step, spec=LABELLED, batches=fed)


def rows_then_all():
    """Two updates of a table in a step: of the rows that are looked up, then of all of them."""
    table, head = variable("table", 6, 3), variable("head", 3, N_CLASSES)
    optimizer = keras.optimizers.SGD(0.2)
    optimizer.build([table, head])

    @tf.function
    def train(batch):
        rows, labels = batch
        with tf.GradientTape() as tape:
            loss = mean_cross_entropy(labels, (rows + tf.nn.embedding_lookup(table, labels)) @ head)
        optimizer.apply(tape.gradient(loss, [table, head]), [table, head])
        with tf.GradientTape() as tape:
            whole = tf.reduce_mean(tf.matmul(rows, table, transpose_b=True) ** 2)
        table.assign_sub(0.1 * tape.gradient(whole, table))
        return loss

    return on_labelled(train, owned=[table, head, *optimizer.variables])


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    keras.backend.clear_session()
    return case_of_model(two_tables(), tmp_path_factory.mktemp("captured") / "two-tables")


def by_name(copies):
    names = sorted({name for name, _ in copies})
    return {name: [copies[copy] for copy in sorted(c for c in copies if c[0] == name)] for name in names}


def concatenated(program):
    return [t for t in program.step.transfers if t.kind == "concatenate"]


@pytest.mark.parametrize("replicas", TOPOLOGIES, ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_all_reduce_is_equivalent_and_needs_no_server(cases, model, replicas):
    case = cases.model(model)
    plan = case.plan("all-reduce", replicas)
    programs = programs_of(case.step, plan)
    for program in programs:
        assert program.self_contained
        assert program.step.transfers == programs[0].step.transfers
    levels = 3 if model == "thrice" else 1
    assert [t.level for t in concatenated(programs[0])] == [*range(1, levels + 1)]
    with InProcessCluster(programs, case.initial) as cluster:
        verdict = case.judge(cluster, plan)
        copies = cluster.read()
    assert verdict.equivalent, max(verdict.variables, key=lambda v: v.update_error)
    for same in by_name({c: v for c, v in copies.items() if c[1] is not None}).values():
        assert {value.tobytes() for value in same} == {same[0].tobytes()}


@pytest.mark.parametrize(
    ("model", "replicas", "strategy_row"),
    [
        (model, replicas, strategy_row)
        for (model, replicas), strategy_row in zip(
            itertools.cycle(itertools.product(("word-lm+adam", "primes-and-ones"), ((2, 1), (1, 1, 1)))),
            OTHERS,
            strict=False,
        )
    ],
    ids=str,
)
def test_other_strategies_are_equivalent(cases, model, replicas, strategy_row):
    case = cases.model(model)
    strategy, params = strategy_row
    plan = case.plan(strategy, (1, 1) if "accumulate" in params else replicas, **params)
    if plan.strategy_class == "exact":
        assert case.check(plan).equivalent
    assert all(map(concatenated, programs_of(case.step, plan)))


@pytest.mark.parametrize("replicas", TOPOLOGIES, ids=str)
def test_rows_of_any_shape_by_ids_of_any_type_travel_together(mixed, replicas):
    plan = mixed.plan("all-reduce", replicas)
    assert mixed.check(plan).equivalent
    for program in programs_of(mixed.step, plan):
        assert len(concatenated(program)) == 1
    types = {b.index_dtype for b in mixed.step.boundaries if b.indices is not None}
    assert types == {"int32", "int64"}


@pytest.fixture(scope="module")
def rows_and_all(shared):
    keras.backend.clear_session()
    return case_of_model(rows_then_all(), shared / "rows-then-all")


@pytest.mark.parametrize("transport", ["tcp", "ring"])
@pytest.mark.parametrize("strategy", ["all-reduce", "partitioned-all-reduce", "hierarchical-all-reduce"])
def test_a_gradient_of_rows_and_a_dense_one_of_the_same_table(rows_and_all, strategy, transport):
    kinds = {b.level: b.indices is not None for b in rows_and_all.step.boundaries if b.variable == "table"}
    assert kinds == {1: True, 2: False}
    plan = rows_and_all.plan(strategy, (2, 1), transport=transport)
    assert rows_and_all.check(plan).equivalent


@pytest.mark.parametrize(
    ("strategy", "params", "times"),
    [("all-reduce", {"transport": "tcp"}, 2), ("all-reduce", {"transport": "ring"}, 2), ("ps", {}, 1)],
)
def test_a_plan_counts_what_is_dense_of_a_table_as_dense(rows_and_all, strategy, params, times):
    (table,) = (v for v in rows_and_all.summary.variables if v.name == "table")
    assert (table.crossings, table.dense_crossings) == (2, 1)
    rows_alone = table.model_copy(update={"crossings": 1, "dense_crossings": 0})
    others = tuple(rows_alone if v.name == "table" else v for v in rows_and_all.summary.variables)
    less = replace(rows_and_all, summary=rows_and_all.summary.model_copy(update={"variables": others}))
    both, rows = (case.plan(strategy, (1, 1), **params) for case in (rows_and_all, less))
    assert both.payload_bytes_per_step - rows.payload_bytes_per_step == times * table.bytes


def test_a_worker_without_rows_takes_part(mixed, monkeypatch):
    lengths = []
    moved = Exchange._moved

    def counted(exchange, transfer, vectors):
        if transfer.kind == "concatenate":
            lengths.append(tuple(map(len, vectors)))
        return moved(exchange, transfer, vectors)

    monkeypatch.setattr(Exchange, "_moved", counted)
    assert mixed.check(mixed.plan("all-reduce", (1, 1, 1))).equivalent
    assert any(0 in length for length in lengths)
    assert any(0 not in length for length in lengths)


def offset_ids(**static):
    rows, ids, *rest = take_back_rows(**static)
    return [rows, ids + 1 - tf.reduce_max(ids) + tf.reduce_min(ids), *rest]


def reversed_rows(**static):
    rows, *rest = take_back_rows(**static)
    return [tf.reverse(rows, [0]), *rest]


def first_worker_only(**static):
    rows, ids, *rest = take_back_rows(**static)
    n = tf.where(ids[1:] <= ids[:-1])[0, 0] + 1
    return [rows[:n], ids[:n], *rest]


def halved_rows(*tensors, **static):
    return hand_over_rows(*(t / 2 if t.dtype.is_floating else t for t in tensors), **static)


@pytest.mark.parametrize(
    ("function", "mistake"),
    [
        ("take_back_rows", offset_ids),
        ("take_back_rows", reversed_rows),
        ("take_back_rows", first_worker_only),
        ("hand_over_rows", halved_rows),
    ],
)
def test_wrong_rows_are_noticed(cases, monkeypatch, function, mistake):
    case = cases.of("word-lm", "momentum")
    plan = case.plan("all-reduce", (2, 1))
    with monkeypatch.context() as patch:
        patch.setattr(tcp_ring, function, mistake)
        programs = broken(case, plan, lambda sound: [sound])
    assert noticed(case, plan, programs)


def test_rows_of_a_replica_that_are_left_out_are_noticed(cases):
    case = cases.of("word-lm", "momentum")
    plan = case.plan("all-reduce", (2, 1))

    def without_second(step, _):
        def left_out(b):
            lost = tuple(replace(c, weight=0.0) if b.rank == 1 and b.indices else c for c in b.contributions)
            return replace(b, contributions=lost)

        return replace(step, boundaries=tuple(map(left_out, step.boundaries)))

    assert noticed(case, plan, broken(case, plan, after("replicate", without_second)))
