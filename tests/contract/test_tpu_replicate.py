"""Steps on replicated variables: what cores train, what they hold, and what they refuse.

By default models, ways and topologies meet in pairs; with `--all-cases` all meet all.
"""

import itertools
import re
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from covering import covering
from matrix import CORE_ROWS

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]
tf = pytest.importorskip("tensorflow")

from cases import case_of_model
from checkpointing import restored, save
from model import on_rows, variable
from state_models import descent, kernel
from task_plans import changed_plan
from test_mutations import after, broken, noticed
from tpu_builder import BODY, UPDATES

from harness.verification.reference import Outcome
from harness.verification.worker.in_process import InProcessCluster, programs_of
from harness.worker.session.checkpoint import read_checkpoint
from strategies.errors import UnsupportedError
from strategies.ir.graph import Node

MODELS = {
    "tensorflow-momentum": "an optimizer of TensorFlow's own",
    "tensorflow-adam": "one whose slots are not of one variable alone",
    "digits-mlp+adamw-clipped": "clipped by the norm of all gradients",
    "clipped-and-averaged": "averages in place of weights, which decay",
    "keras-mixed-precision-of-its-own": "a loss scale, and updates in a branch",
    "accumulated": "updates of every other step, in a branch",
    "normalised": "state that is a mean",
    "keras-own-step": "random state, which differs between replicas",
    "adversarial": "two boundaries in a row",
    "recurrent": "loops in functions",
    "looked-up-in-a-loop": "a loop that gives the handle of a variable it was given",
}
"""Model → what it has that others have not."""
TOPOLOGIES = ((2,), (4,), (2, 2))


def pytest_generate_tests(metafunc):
    if "combination" not in metafunc.fixturenames:
        return
    factors = {"model": tuple(MODELS), "replicas": TOPOLOGIES, "row": tuple(CORE_ROWS)}
    if metafunc.config.getoption("--all-cases"):
        chosen = list(itertools.product(*factors.values()))
    else:
        chosen = covering(factors, [("model", "row"), ("replicas", "row")])
    metafunc.parametrize("combination", chosen, ids=lambda c: f"{c[0]}-{'+'.join(map(str, c[1]))}-{c[2]}")


def test_cores_train_what_one_device_does(cases, combination):
    model, replicas, row = combination
    case = cases.model(model).for_row(row, replicas)
    strategy, params = CORE_ROWS[row]
    verdict = case.check(case.plan(strategy, replicas, **params))
    worst = max(verdict.variables, key=lambda v: v.update_error)
    assert verdict.equivalent, f"{worst.name} is off by {worst.update_error:.1e}"
    assert verdict.tolerance < 1e-9


@pytest.fixture(scope="module", params=["tpu-replicate", "tpu-replicate-in-parts"])
def stepped(request, cases):
    """A case with random state and slots, on two workers that have made its steps, and their plan."""
    strategy, params = CORE_ROWS[request.param]
    case = cases.model("keras-own-step").with_examples(6)
    plan = case.plan(strategy, (2, 1), **params)
    with InProcessCluster(programs_of(case.step, plan), case.initial) as cluster:
        for batch in case.batches:
            cluster.step(batch)
        yield case, plan, cluster


@contextmanager
def one_copy_off(cluster, name):
    """Another value in the last copy of a variable, meanwhile."""
    *_, last = cluster.sessions
    value = cluster.read()[name, 2]
    last.assign({(name, 2): value + 1})
    yield
    last.assign({(name, 2): value})


class TestReplicatedVariables:
    def test_every_replica_has_a_copy_of_variables_and_slots_which_are_equal(self, stepped):
        case, plan, cluster = stepped
        values = cluster.read()
        assert {v.kind for v in case.step.variables} >= {"trainable", "slot"}
        assert values.keys() == {(v.name, rank) for v in case.step.variables for rank in range(3)}
        for v in case.step.variables:
            first, *others = (values[v.name, rank] for rank in range(3))
            if v.rule == "per-replica":
                assert all((first != other).any() for other in others), v.name
            else:
                assert all((first == other).all() for other in others), v.name
        # A plan, and so a report, lists each once.
        assert len(plan.nodes) == len({node.variable for node in plan.nodes})

    def test_a_copy_that_an_assignment_missed_is_noticed(self, stepped):
        case, _, cluster = stepped
        reference = case.reference((2, 1))
        assert reference.judge(Outcome(values=cluster.read())).equivalent
        with one_copy_off(cluster, next(v.name for v in case.step.variables if v.kind == "slot")):
            assert not reference.judge(Outcome(values=cluster.read())).equivalent

    def test_readers_see_the_first_copy_and_what_is_loaded_goes_to_all(self, stepped, tmp_path):
        case, _, cluster = stepped
        name = next(v.name for v in case.step.variables if v.kind == "trainable")
        values = cluster.read()
        # Copies do not differ, but whose value is read shows only where they do.
        with one_copy_off(cluster, name):
            save(case, cluster, tmp_path / "checkpoint", len(case.batches))
            model = {v.name: case.initial.value(v.name) for v in case.step.variables}
            read = read_checkpoint(tmp_path / "checkpoint", model).values
            np.testing.assert_array_equal(read[name], values[name, 0])
            cluster.begin(restored(case, tmp_path / "checkpoint").initial)
            for copy, value in cluster.read().items():
                np.testing.assert_array_equal(value, values[copy])


def rows_where(x, w):
    return tf.reduce_mean(tf.gather(x * w, tf.where(x[:, 0] > 0)[:, 0]) ** 2)


def distinct(x, w):
    return tf.reduce_mean((x * w) ** 2) * tf.cast(
        tf.size(tf.unique(tf.cast(x[:, 0], tf.int32))[0]), tf.float32
    )


def in_a_branch(x, w):
    return tf.cond(tf.reduce_sum(x) > 0, lambda: rows_where(x, w), lambda: tf.reduce_mean((x * w) ** 2))


@pytest.mark.parametrize(
    ("loss", "op"),
    [(rows_where, "Where"), (distinct, "Unique"), (in_a_branch, "Where")],
)
@pytest.mark.parametrize("row", CORE_ROWS)
def test_shapes_that_depend_on_data_are_refused(shared, loss, op, row):
    """Shapes known at trace time are accepted, and covered by the equivalence matrix."""
    w = kernel()
    model = on_rows(descent(lambda x: loss(x, w), w))
    case = case_of_model(model, shared / f"refused-{loss.__name__}-{row}").with_examples(6)
    strategy, params = CORE_ROWS[row]
    with pytest.raises(UnsupportedError) as refused:
        programs_of(case.step, case.plan(strategy, (1, 1), **params))
    assert re.fullmatch(
        rf"a step for TPU cores: (function '\S+', )?node '\S+' must have a result of known shape, got {op}; "
        "compare it by all-reduce or sharded-update instead",
        str(refused.value),
    )


@pytest.mark.parametrize("row", CORE_ROWS)
def test_updates_of_rows_alone_are_refused(shared, row):
    """Those of TensorFlow's own optimizers; Keras's do with the gradients of all rows."""
    table, optimizer = variable("table", 5, 3), tf.compat.v1.train.MomentumOptimizer(0.1, 0.9)

    @tf.function
    def train(x):
        with tf.GradientTape() as tape:
            rows = tf.nn.embedding_lookup(table, tf.cast(tf.abs(x[:, 0]) * 9, tf.int32) % 5)
            loss = tf.reduce_mean((x * rows) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        return loss

    case = case_of_model(on_rows(train), shared / f"refused-rows-{row}").with_examples(6)
    strategy, params = CORE_ROWS[row]
    with pytest.raises(UnsupportedError) as refused:
        programs_of(case.step, case.plan(strategy, (1, 1), **params))
    assert re.fullmatch(
        "a step for TPU cores: the update of 'table' must do with dense gradients, which programs of known "
        r"shapes have, got \w+, which leaves rows without a gradient as they are; .*",
        str(refused.value),
    )


def by_rows(update):
    """A step whose update of a table is written out; it takes the table, its gradient's ids and its rows."""
    table = variable("table", 5, 3)

    @tf.function
    def train(x):
        with tf.GradientTape() as tape:
            rows = tf.nn.embedding_lookup(table, tf.cast(tf.abs(x[:, 0]) * 9, tf.int32) % 5)
            loss = tf.reduce_mean((x * rows) ** 2)
        gradient = tape.gradient(loss, table)
        update(table, gradient.indices, gradient.values)
        return loss

    return on_rows(train)


def lazy_momentum(how):
    """An average of gradients that rows without one keep as it is."""
    moments = tf.Variable(tf.zeros((5, 3)), trainable=False, name="moments")

    def update(table, ids, rows):
        before = tf.gather(moments, ids)
        if how == "assigned":
            moments.scatter_update(tf.IndexedSlices(0.9 * before + 0.1 * rows, ids))
        else:
            moments.scatter_add(tf.IndexedSlices(0.1 * (rows - before), ids))
        table.scatter_sub(tf.IndexedSlices(0.1 * tf.gather(moments, ids), ids))

    return update


@pytest.mark.parametrize("how", ["assigned", "added"])
@pytest.mark.parametrize("row", CORE_ROWS)
def test_rows_that_are_moved_from_where_they_are_looked_up_are_refused(shared, row, how):
    case = case_of_model(by_rows(lazy_momentum(how)), shared / f"lazy-{how}-{row}").with_examples(6)
    strategy, params = CORE_ROWS[row]
    with pytest.raises(UnsupportedError, match=r"'table' must do with dense gradients, .* ResourceScatter"):
        programs_of(case.step, case.plan(strategy, (1, 1), **params))


def test_rows_that_are_looked_up_and_moved_by_their_gradient_alone_are_trained(shared):
    def update(table, ids, rows):
        table.scatter_update(tf.IndexedSlices(tf.gather(table, ids) - 0.1 * rows, ids))

    case = case_of_model(by_rows(update), shared / "rows-looked-up").with_examples(6)
    assert case.check(case.plan("tpu-replicate", (1, 1))).equivalent


@pytest.mark.parametrize("row", CORE_ROWS)
def test_shares_that_differ_are_refused(cases, row):
    strategy, params = CORE_ROWS[row]
    with pytest.raises(UnsupportedError) as refused:
        cases.of("digits-mlp", "momentum").plan(strategy, (2, 1), **params)
    assert str(refused.value) == (
        "strategy 'tpu-replicate': every replica runs the same program, so that each needs as many examples, "
        "got 7 for 3 replicas; make batch_size a multiple"
    )


def rewritten(change):
    """Apply a change to every node of the replicated computation."""

    def mistake(step, _):
        return replace(step, graph=step.graph.with_nodes(change(node) for node in step.graph.nodes))

    return mistake


def without_sum(node):
    if node.op != "CrossReplicaSum":
        return node
    return replace(node, op="Identity", inputs=node.inputs[:1])


def in_each_other_s_place(node):
    """Each replica has the other's copies, of random state too."""
    if node.op != "TPUReplicatedInput" or node.attrs["is_mirrored_variable"]:
        return node
    return replace(node, inputs=tuple(reversed(node.inputs)))


def one_update_less(node):
    if node.op not in UPDATES or BODY not in node.attrs or "bias" not in node.inputs[0]:
        return node
    waits = tuple(ref for ref in node.inputs if ref[0] == "^")
    return Node(name=node.name, op="NoOp", inputs=waits, attrs={BODY: node.attrs[BODY]})


def without_scale(node):
    if not node.name.endswith("/scaled/mul"):
        return node
    return Node(name=node.name, op="Identity", inputs=node.inputs[:1], attrs=node.attrs)


@pytest.mark.parametrize("change", [without_sum, in_each_other_s_place, one_update_less, without_scale])
def test_a_computation_that_is_broken_is_noticed(cases, change):
    case = cases.model("digits-cnn+momentum").with_examples(6)
    plan = case.plan("tpu-replicate", (2,))
    assert noticed(case, plan, broken(case, plan, after("tpu-replicate", rewritten(change))))


def test_statistics_of_a_shard_alone_are_noticed(cases):
    case = cases.model("synchronized").with_examples(6)
    plan = case.plan("tpu-replicate", (2,))

    def of_no_layer(sound):
        if sound.name != "tpu-replicate":
            return [sound]
        return [replace(sound, plan=changed_plan(sound.plan, statistics=()))]

    assert noticed(case, plan, broken(case, plan, of_no_layer))
