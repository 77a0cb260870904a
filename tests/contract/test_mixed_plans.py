"""Plans in which some variables are on servers and the others all-reduced: `parallax`, and edited ones."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

# Where a mistake leaves workers waiting for each other, the test must end at some time.
pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600)]
tf = pytest.importorskip("tensorflow")

import keras
from cases import case_of_model
from matrix import OPTIMIZERS, TOPOLOGIES
from model import on_rows
from models import STATE
from test_mutations import after, broken, noticed, without

from harness.verification.worker.in_process import programs_of
from strategies.errors import StrategyError
from strategies.ir.graph_rules import verify
from strategies.ir.text import to_text
from strategies.ir.traversal import ancestors
from strategies.passes.pass_order import passes_of
from strategies.passes.run import run_passes
from strategies.planner import topology_of
from strategies.topology import UPDATER, task_device

# With clipping by global norm a dense update reads of sparse gradients and the other way round.
CHOSEN = [
    ("word-lm", "momentum", (2, 2)),
    ("word-lm", "adam", (1, 1, 1)),
    ("word-lm", "adamw-clipped", (2, 1)),
    ("word-lm", "adagrad", (1, 1)),
    ("word-lm", "rmsprop", (2,)),
]
ALL = itertools.product(("digits-mlp", "digits-cnn", "word-lm"), OPTIMIZERS, TOPOLOGIES)


def pytest_generate_tests(metafunc):
    if "combination" in metafunc.fixturenames:
        chosen = list(ALL) if metafunc.config.getoption("--all-cases") else CHOSEN
        metafunc.parametrize(
            "combination", chosen, ids=lambda c: "-".join((*c[:2], "+".join(map(str, c[2]))))
        )


def assert_equivalent(case, plan):
    verdict = case.check(plan)
    worst = max(verdict.variables, key=lambda v: v.update_error)
    assert verdict.equivalent, f"{worst.name} is off by {worst.update_error:.1e}"
    assert verdict.tolerance < 1e-9


def synchronizers(plan):
    return {node.synchronizer for node in plan.nodes} - {"none"}


def test_parallax_computes_what_one_device_computes(cases, combination):
    workload, optimizer, replicas = combination
    case = cases.of(workload, optimizer)
    plan = case.plan("parallax", replicas)
    assert plan.strategy_class == "exact"
    assert synchronizers(plan) == ({"ps", "all-reduce"} if workload == "word-lm" else {"all-reduce"})
    assert_equivalent(case, plan)


def served(plan, *names, task=1):
    """The plan with these variables, and what belongs to them, on a server."""

    def edited(node):
        if not any(node.variable == name or name.replace("/", "_") in node.variable for name in names):
            return node
        synchronizer = "none" if node.synchronizer == "none" else "ps"
        return node.model_copy(
            update={"synchronizer": synchronizer, "destination": task, "group": None, "transport": None}
        )

    return plan.model_copy(update={"nodes": tuple(map(edited, plan.nodes))})


def names_of(case, *parts):
    return [v.name for v in case.summary.variables if v.slot_of is None and any(p in v.name for p in parts)]


def test_replicas_that_take_their_examples_in_micro_batches(cases):
    case = cases.of("word-lm", "adamw-clipped")
    assert_equivalent(case, case.plan("parallax", (2, 1), accumulate=2))


@pytest.mark.parametrize("strategy", ["all-reduce", "hierarchical-all-reduce"])
def test_dense_variables_and_forward_state_on_servers(cases, strategy):
    """Half of the layers, one half of the forward state, and with clipping all gradients together."""
    case = cases.of("digits-cnn", "adamw-clipped")
    chosen = [*names_of(case, "conv", "moving_mean"), *names_of(case, "gamma")]
    plan = served(case.plan(strategy, (1, 2), transport="ring"), *chosen)
    assert synchronizers(plan) == {"ps", strategy}
    assert_equivalent(case, plan)


def test_what_updates_share_on_a_server(cases):
    """The step counter is one for all, and replicas are sent its value."""
    case = cases.of("word-lm", "adam")
    counters = [v.name for v in case.summary.variables if v.kind == "slot" and v.slot_of is None]
    assert any("iteration" in name for name in counters)
    plan = served(case.plan("parallax", (1, 2)), *counters, task=0)
    assert_equivalent(case, plan)


def test_a_variable_in_parts_on_servers(cases):
    case = cases.of("word-lm", "adagrad")
    parts = {n.variable: n for n in case.plan("uneven-partitioned-ps", (1, 1)).nodes}
    plan = case.plan("parallax", (1, 1))
    nodes = (parts[n.variable] if n.destination is not None else n for n in plan.nodes)
    plan = plan.model_copy(update={"nodes": tuple(nodes)})
    assert any(n.partition is not None for n in plan.nodes)
    assert_equivalent(case, plan)


def counted_in_the_loss():
    """Forward reads the counter; it waits for all gradients, and another variable for all updates."""
    w = tf.Variable(np.linspace(0.1, 0.3, 3).astype(np.float32), name="w")
    far = tf.Variable(np.linspace(0.4, 0.2, 3).astype(np.float32), name="far")
    count = tf.Variable(1.0, name="count", trainable=False)
    after = tf.Variable(0.0, name="after", trainable=False)

    @tf.function
    def train(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x * w * far) ** 2) / count
        a, b = tape.gradient(loss, [w, far])
        one = w.assign_sub(0.1 * a)
        other = far.assign_sub(0.1 * b + 0.01 * tf.reduce_sum(a))
        with tf.control_dependencies([one, other]):
            count.assign_add(tf.minimum(1.0, 1e9 * tf.reduce_sum(tf.abs(a))))
            after.assign_add(0.5 * tf.reduce_sum(far.read_value() - b))
        return loss

    return train


def with_served(plan, names, task):
    """The plan with exactly these variables on a server."""
    on_server = {"synchronizer": "ps", "destination": task, "group": None, "transport": None}
    nodes = (n.model_copy(update=on_server) if n.variable in names else n for n in plan.nodes)
    return plan.model_copy(update={"nodes": tuple(nodes)})


@pytest.mark.parametrize("names", [["w"], ["far"]], ids=str)
@pytest.mark.parametrize("replicas", [(2,), (1, 2)], ids=str)
def test_updates_that_read_and_wait_for_each_other(tmp_path, names, replicas):
    case = case_of_model(on_rows(counted_in_the_loss()), tmp_path / f"counted-{names[0]}")
    plan = case.plan("all-reduce", replicas, transport="ring")
    assert_equivalent(case, with_served(plan, names, task=len(replicas) - 1))


@pytest.mark.parametrize("model", STATE)
def test_every_second_variable_on_a_server(cases, model):
    """Summed, counted and averaged state, two tapes, a table, checks and prints after the update."""
    case = cases.model(model)
    plan = case.plan("all-reduce", (1, 2), transport="ring")
    crossing = [n.variable for n in plan.nodes if n.synchronizer != "none"]
    for names in (crossing[::2], crossing[1::2]):
        if names:
            assert_equivalent(case, with_served(plan, names, task=1))


# Mistakes, each of which the check must notice.


@pytest.mark.parametrize("dropped", ["broadcast-update-values", "dense-all-reduce"])
def test_a_dropped_pass(cases, dropped):
    case = cases.of("word-lm", "adamw-clipped")
    plan = case.plan("parallax", (1, 1))
    assert noticed(case, plan, broken(case, plan, without(dropped)))


def test_a_counter_that_is_moved_on_twice(cases):
    """The server's update reads the first replica's counter, which it must not move on itself."""
    case = cases.of("word-lm", "adam")
    plan = case.plan("parallax", (1, 1))

    def twice(step, _):
        counters = [v for v in step.variables if v.kind == "slot" and v.slot_of is None and v.rank == 0]
        writes = [
            n
            for v in counters
            for n in step.graph.nodes
            if n.op.startswith("Assign") and n.inputs[0] == v.handle and n.name != v.load
        ]
        again = [
            replace(n, name=f"again/{n.name}", op="AssignAddVariableOp", inputs=(*n.inputs, f"^{n.name}"))
            for n in writes
        ]
        graph = step.graph.with_nodes([*step.graph.nodes, *again])
        return replace(step, graph=graph, step_targets=(*step.step_targets, *(n.name for n in again)))

    def on_updater(sound):
        return after("placement", twice)(sound) if sound.plan.task == UPDATER else [sound]

    assert noticed(case, plan, broken(case, plan, on_updater))


# What cannot be.


def scaled_loss():
    """An optimizer that updates all variables in one branch, if all gradients are finite."""
    keras.backend.clear_session()
    w, far = (
        keras.Variable(np.full((3,), x), name=n, dtype="float32") for x, n in ((0.5, "w"), (0.1, "far"))
    )
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    optimizer.build([w, far])

    @tf.function
    def train(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x * w.value + far.value))
            scaled = optimizer.scale_loss(loss)
        optimizer.apply(tape.gradient(scaled, [w.value, far.value]), [w, far])
        return loss

    train.optimizer = optimizer  # held while the step is
    return train


def test_one_branch_that_updates_both_kinds(tmp_path):
    case = case_of_model(on_rows(scaled_loss()), tmp_path / "scaled")
    plan = case.plan("all-reduce", (1, 1), transport="ring")
    assert_equivalent(case, plan)
    message = (
        r"variables '.*' and '.*': \w*If '.*' updates them together, so both must be on servers or neither"
    )
    with pytest.raises(StrategyError, match=message):
        programs_of(case.step, with_served(plan, ["far"], task=1))


@pytest.mark.parametrize("task", [0, 1])
def test_passes_are_pure_and_leave_sound_graphs(cases, task):
    case = cases.of("word-lm", "adamw-clipped")
    plan = case.plan("parallax", (1, 2))
    step, topology = case.step, topology_of(plan)
    for rewrite in passes_of(plan, task):
        before = to_text(step.graph)
        first, second = rewrite.apply(step, topology), rewrite.apply(step, topology)
        assert to_text(step.graph) == before
        assert to_text(first.graph) == to_text(second.graph)
        verify(first.graph)
        assert {*first.roots()} <= set(first.graph.by_name)
        step = first
    assert step.update_values


@pytest.mark.parametrize("task", [0, 1])
def test_no_run_has_both_collectives_and_other_tasks(cases, task):
    """TensorFlow would end a worker's step with that of another worker, if that one is faster."""
    case = cases.of("word-lm", "adamw-clipped")
    plan = served(case.plan("parallax", (1, 2)), *names_of(case, "embeddings"), task=1)
    sound = passes_of(plan, task)

    def runs(passes):
        step = run_passes(passes, case.step, topology_of(plan)).step
        for targets in (step.targets(), step.background):
            nodes = [step.graph.by_name[name] for name in ancestors(step.graph, targets)]
            devices = {n.device.partition("/device:")[0] for n in nodes} - {""}
            yield any(n.op.startswith("Collective") for n in nodes), devices > {task_device(task)}

    assert [*runs(sound)] == [(False, True), (True, False)]
    assert (True, True) in [*runs([rewrite for rewrite in sound if rewrite.name != "separate-collectives"])]


def test_without_servers_or_other_tasks_nothing_changes(cases):
    case = cases.of("word-lm", "adamw-clipped")
    plan = case.plan("parallax", (1, 1))
    apart, hand_over = (
        e for e in passes_of(plan, 0) if e.name in ("separate-collectives", "broadcast-update-values")
    )
    topology = topology_of(plan)
    assert apart.apply(case.step, topology) is case.step
    assert hand_over.apply(case.step, topology) is case.step
