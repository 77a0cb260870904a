"""Variables that no step changes: replicas have them as they have constants, whatever servers hold."""

import keras
import numpy as np
import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]
tf = pytest.importorskip("tensorflow")

from cases import case_of_model
from checkpointing import restored, save, steps
from model import N_CLASSES, mean_cross_entropy, on_labelled, values

from harness.verification.worker.in_process import InProcessCluster, programs_of
from strategies.planner import payload_matrix

ON_SERVERS = {
    "ps": ("ps", {}),
    "ps-with-proxies": ("ps-load-balancing", {"local_proxy_variable": True}),
    "micro-batches": ("ps", {"accumulate": 2}),
    "partitioned-ps": ("partitioned-ps", {}),
    "robust-ps": ("robust-ps", {"rule": "mean"}),
    "robust-ps-copies": ("robust-ps", {"rule": "mean", "servers": 2}),
}


def adapted():
    """A frozen network and a temperature, which update and loss read, below a layer that is trained."""
    base = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.BatchNormalization()])
    base.trainable = False
    head, optimizer = keras.layers.Dense(N_CLASSES), keras.optimizers.SGD(0.1, momentum=0.9)
    head.build((None, 4))
    optimizer.build(head.trainable_variables)
    temperature = tf.Variable(1.5, name="temperature")
    anchor = tf.Variable(values(4, N_CLASSES), trainable=False, name="anchor")
    seen = keras.metrics.Mean(name="seen")

    @tf.function
    def train(batch):
        rows, labels = batch
        with tf.GradientTape() as tape:
            logits = head(base(rows, training=True)) / tf.stop_gradient(temperature)
            loss = mean_cross_entropy(labels, logits)
        seen.update_state(loss)
        gradients = tape.gradient(loss, head.trainable_variables)
        optimizer.apply(gradients, head.trainable_variables)
        kernel = head.kernel.value
        kernel.assign_sub(0.01 * temperature * (kernel - anchor))
        return loss

    return on_labelled(train)


@pytest.fixture(scope="module")
def case(shared):
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    return case_of_model(adapted(), shared / "only-read")


def own_variables(case):
    """Names of the variables that each replica should have for itself."""
    return {v.name for v in case.summary.variables if v.only_read}


def test_what_replicas_read_and_no_step_writes_is_only_read(case):
    by_name = {v.name: v for v in case.summary.variables}
    frozen = {name for name in by_name if name.startswith("sequential/")}
    assert own_variables(case) == {*frozen, "temperature"}
    assert len(frozen) == 6
    assert {name for name, v in by_name.items() if v.reads == 0} >= {"anchor", "seen/total", "seen/count"}


@pytest.mark.parametrize("name", ON_SERVERS)
def test_servers_train_with_it(case, name):
    strategy, params = ON_SERVERS[name]
    replicas = (1, 1) if name == "robust-ps-copies" else (1, 2)
    plan = case.plan(strategy, replicas, **params)
    assert own_variables(case) <= {node.variable for node in plan.nodes if node.destination is None}
    verdict = case.check(plan)
    worst = max(verdict.variables, key=lambda v: v.update_error)
    assert verdict.equivalent, f"{worst.name} is off by {worst.update_error:.1e}"


def test_nothing_of_it_is_pulled(case):
    plan = case.plan("ps", (1, 2))
    pulled = sum(v.bytes for v in case.summary.variables if v.kind == "trainable" and v.synced)
    assert payload_matrix(plan, case.summary).pulled == ((0, 2 * pulled), (0, 0))
    own = [node.bytes for node in plan.nodes if node.destination is None]
    assert plan.worker_bytes == sum(own) > 0
    for task, program in enumerate(programs_of(case.step, plan)):
        graph = tf.compat.v1.GraphDef.FromString(program.graph_def)
        devices = [n.device for n in graph.node if n.op == "VarHandleOp" and "temperature" in n.name]
        assert len(devices) == plan.replicas_per_task[task]
        assert all(f"task:{task}" in device for device in devices)


def test_no_server_tells_of_it(case):
    for program in programs_of(case.step, case.plan("robust-ps", (1, 1), rule="mean", servers=2)):
        graph = tf.compat.v1.GraphDef.FromString(program.graph_def)
        names = [n.name for n in graph.node if n.name.startswith("servers/") and n.op == "ReadVariableOp"]
        assert any("dense_1" in name for name in names)
        assert not [name for name in names if "temperature" in name or "batch_normalization" in name]


@pytest.mark.parametrize("params", [{"sync": False}, {"staleness": 1}, {"backup": 1}])
def test_workers_that_go_ahead_read_their_own(case, params):
    """No reference says what they come to, but what is only read stays as it was."""
    plan = case.plan("ps", (1, 1), **params)
    with InProcessCluster(programs_of(case.step, plan), case.initial) as cluster:
        assert all(np.isfinite(cluster.step(batch)) for batch in case.batches)
        read = cluster.read()
    for name in own_variables(case):
        for rank in (0, 1):
            np.testing.assert_array_equal(read[name, rank], case.initial.value(name))


def test_a_checkpoint_holds_it_once(case, tmp_path):
    first, *others = case.batches
    whole = steps(case, case.plan("ps", (1, 1)), case.batches)
    with InProcessCluster(programs_of(case.step, case.plan("ps", (1, 1))), case.initial) as cluster:
        cluster.step(first)
        save(case, cluster, tmp_path / "checkpoint", 1)
    again = restored(case, tmp_path / "checkpoint")
    reached = steps(again, again.plan("all-reduce", (1, 1)), others)
    for v in case.step.variables:
        expected = whole.get((v.name, None), whole.get((v.name, 0)))
        np.testing.assert_allclose(reached[v.name, 0], expected, rtol=1e-9, atol=1e-12)
