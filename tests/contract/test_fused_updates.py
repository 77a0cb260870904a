"""Kernels in place of optimizers' small operations: which there are, and that they compute the same."""

from collections import Counter
from dataclasses import replace

import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

import keras
from cases import case_of_model
from layer_models import primes_and_ones
from task_plans import task_plan

from harness.verification.worker.in_process import programs_of
from strategies.passes.update.fuse import FuseUpdates
from strategies.topology import Topology

SCHEDULES = keras.optimizers.schedules
WARM = {"warmup_target": 0.2, "warmup_steps": 3}
ADAM, DECAY = "ResourceApplyAdam", "ResourceApplyGradientDescent"
# Optimizer → kernels for three variables, of which the gradient of one has rows: decay does not mind.
OPTIMIZERS = {
    "sgd": (lambda: keras.optimizers.SGD(0.1), {DECAY: 2}),
    "momentum": (lambda: keras.optimizers.SGD(0.1, momentum=0.9), {"ResourceApplyKerasMomentum": 2}),
    "nesterov": (
        lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
        {"ResourceApplyKerasMomentum": 2},
    ),
    "adam, clipped": (lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.5), {ADAM: 2}),
    "adam, warmed up": (lambda: keras.optimizers.Adam(SCHEDULES.CosineDecay(0.01, 9, **WARM)), {ADAM: 2}),
    "amsgrad": (lambda: keras.optimizers.Adam(0.01, amsgrad=True), {ADAM: 2}),
    "adamw": (lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1), {ADAM: 2, DECAY: 3}),
    # The nearest number to 1 - β is too far from it.
    "adam, slow": (lambda: keras.optimizers.Adam(0.01, beta_1=0.999), {}),
    "averaged": (lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.5), {ADAM: 2}),
    "adagrad": (lambda: keras.optimizers.Adagrad(0.1), {}),
    "rmsprop": (lambda: keras.optimizers.RMSprop(0.01, momentum=0.5), {}),
}
ROWS = {
    "single": ((1,), {}),
    "all-reduce": ((2, 1), {}),
    "sharded-update": ((1, 1), {}),
    "ps": ((1, 1), {}),
    "partitioned-ps": ((2, 1), {}),
}


@pytest.fixture(scope="module")
def trained(shared):
    traces = {}

    def of(optimizer):
        if optimizer not in traces:
            keras.backend.clear_session()
            keras.utils.set_random_seed(1)
            make, _ = OPTIMIZERS[optimizer]
            traces[optimizer] = case_of_model(primes_and_ones(make()), shared / f"fused-{optimizer}")
        return traces[optimizer]

    return of


def kernels(nodes):
    return Counter(node.op for node in nodes if node.op.startswith("ResourceApply"))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_each_dense_variable_has_the_kernels_that_there_are(trained, optimizer):
    step = trained(optimizer).step
    fused = FuseUpdates(plan=task_plan()).apply(step, Topology(replicas_per_task=(1,), batch_size=4))
    expected = OPTIMIZERS[optimizer][1]
    assert kernels(fused.graph.nodes) == expected
    assert (fused is step) == (not expected)


@pytest.mark.parametrize("strategy", ROWS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_kernels_compute_what_the_optimizer_does(trained, optimizer, strategy):
    replicas, params = ROWS[strategy]
    case = trained(optimizer)
    verdict = case.check(case.plan(strategy, replicas, **params))
    assert verdict.equivalent, verdict.reason
    assert verdict.tolerance < 1e-9


@pytest.mark.parametrize("position", [5, 6, 7, 8], ids=["rate", "first average", "second average", "epsilon"])
def test_a_kernel_with_another_number_is_found(trained, position):
    case = trained("adam, clipped")
    plan = case.plan("single", (1,))
    (program,) = programs_of(case.step, plan)
    graph = tf.compat.v1.GraphDef.FromString(program.graph_def)
    node = next(node for node in graph.node if node.op == ADAM)
    dtype = tf.as_dtype(node.attr["T"].type)
    wrong = graph.node.add(name="wrong", op="Const", device=node.device)
    wrong.attr["dtype"].type = dtype.as_datatype_enum
    wrong.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(0.5, dtype))
    node.input[position] = "wrong"
    broken = replace(program, graph_def=graph.SerializeToString())
    assert case.run(plan, [broken]).equivalent is False
