"""Compiled Keras models: captured as `model.fit` trains them, and equal under every strategy.

By default each model meets one of the topologies; with `--all-cases` both.
"""

import itertools
from types import SimpleNamespace

import keras
import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from keras_models import COMPILED, compiled
from model import BATCH_SIZE

from harness.verification.worker.in_process import InProcessCluster, programs_of
from harness.verification.worker.whole_batch import separability_of
from harness.worker.session.capture_store import InitialValues, save
from strategies.capture.capture import capture
from strategies.registry import make_plan
from strategies.summary import summarise
from strategies.topology import Topology
from workloads.keras_step import step_of, step_of_model

STRATEGIES = ("all-reduce", "ps", "partitioned-ps", "sharded-update")
TOPOLOGIES = ((2, 1), (1, 2))


def pytest_generate_tests(metafunc):
    if "combination" not in metafunc.fixturenames:
        return
    if metafunc.config.getoption("--all-cases"):
        shapes = list(itertools.product(COMPILED, TOPOLOGIES))
    else:
        shapes = list(zip(COMPILED, itertools.cycle(TOPOLOGIES), strict=False))
    chosen = [(*shape, strategy) for shape in shapes for strategy in STRATEGIES]
    # Its updates lie in a branch within a branch, and its variables on several servers.
    chosen += [("mixed-precision", (1, 1), strategy) for strategy in ("ps-load-balancing", "sharded-ps")]
    metafunc.parametrize("combination", chosen, ids=lambda c: f"{c[0]}-{'+'.join(map(str, c[1]))}-{c[2]}")


def test_a_compiled_model_computes_under_every_strategy_what_one_device_computes(cases, combination):
    model, replicas, strategy = combination
    case = cases.model(f"keras-{model}")
    verdict = case.check(case.plan(strategy, replicas))
    worst = max(verdict.variables, key=lambda v: v.update_error)
    assert verdict.equivalent, f"{worst.name} is off by {worst.update_error:.1e}"
    # What a metric alone computes in float32 excuses nothing.
    assert verdict.tolerance < 1e-9


@pytest.mark.parametrize(
    ("loss", "reduction"),
    [
        ("mse", "mean"),
        (keras.losses.MeanSquaredError(), "mean"),
        (keras.losses.MeanSquaredError(reduction="sum"), "sum"),
        ([keras.losses.MeanSquaredError(reduction="sum")], "sum"),
        (lambda y, y_pred: tf.reduce_mean(y_pred), "mean"),
        (None, "mean"),
    ],
)
def test_a_compiled_loss_says_itself_whether_it_is_a_sum(loss, reduction):
    net, spec = COMPILED["weighted"]()
    net.compile("sgd", loss)
    assert step_of_model(net, spec).reduction == reduction


def test_an_output_without_a_loss_says_nothing_of_sums():
    net, spec = COMPILED["summed"]()
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    net.compile("sgd", {"label": entropy, "value": None})
    assert step_of_model(net, spec).reduction == "sum"


@pytest.mark.parametrize("name", COMPILED)
def test_shards_of_a_compiled_model_mean_what_its_step_means(tmp_path, name):
    """Those of the whole batch, but for the model that normalises by its batch."""
    fresh()
    model = compiled(name)
    captured = capture(model.step, model.spec)
    save(tmp_path / name, captured.step, captured.initial)
    topology = Topology(replicas_per_task=(2, 1), batch_size=BATCH_SIZE)
    initial = InitialValues(tmp_path / name, float64=True)
    separability = separability_of(captured.step, initial, topology, model.batches[0])
    assert separability.separable is (name != "classifier"), separability.explanation


@pytest.mark.parametrize(
    ("settings", "left_out"),
    [
        ({"jit_compile": False}, []),
        ({"jit_compile": True}, ["jit_compile=True"]),
        (
            {"run_eagerly": True, "steps_per_execution": 2},
            ["run_eagerly=True, steps_per_execution=2"],
        ),
    ],
)
def test_how_fit_runs_a_step_is_left_out_with_a_note(settings, left_out):
    net, spec = COMPILED["weighted"]()
    net.compile("sgd", "mse", **settings)
    notes = step_of(SimpleNamespace(train_step=lambda: net), spec).notes
    assert notes == tuple(
        f"left out of compile(): {message}; each step runs by itself, as a graph, without XLA"
        for message in left_out
    )


class Snapshot(keras.callbacks.Callback):
    """All that a model holds after its last batch, before `fit` puts averages in place of weights."""

    def on_train_batch_end(self, batch, logs=None):
        net = self.model
        variables = [*net.variables, *net.metrics_variables, *net.optimizer.variables]
        self.variables = {last_parts(variable.path): variable.numpy() for variable in variables}


def last_parts(path):
    """A variable's name and its layer's: where an optimizer is built decides what comes before."""
    return "/".join(path.split("/")[-2:])


def fitted(name, batches):
    """Result of training a model with `model.fit` itself."""
    net, spec = COMPILED[name]()
    rows = [tf.nest.pack_sequence_as(spec, batch) for batch in batches]
    whole = tf.nest.map_structure(lambda *parts: np.concatenate(parts), *rows)
    data = tf.data.Dataset.from_tensor_slices(whole).batch(BATCH_SIZE)
    snapshot = Snapshot()
    net.fit(data, verbose=0, callbacks=[snapshot])
    return snapshot.variables


@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_model_is_captured_as_fit_trains_it(tmp_path, name):
    fresh()
    model = compiled(name)
    captured = capture(model.step, model.spec)
    folder = tmp_path / name
    summary = summarise(captured.step, name, {})
    save(folder, captured.step, captured.initial)
    topology = Topology(replicas_per_task=(1,), batch_size=BATCH_SIZE)
    programs = programs_of(captured.step, make_plan("single", {}, summary, topology))
    with InProcessCluster(programs, InitialValues(folder)) as cluster:
        for batch in model.batches:
            cluster.step(batch)
        values = {last_parts(variable): value for (variable, _), value in cluster.read().items()}
    assert len(values) == len(captured.initial)
    fresh()
    expected = fitted(name, model.batches)
    assert expected.keys() <= values.keys()
    trained = [v.name for v in captured.step.variables if v.kind == "trainable"]
    assert all(np.any(values[last_parts(name)] != captured.initial[name]) for name in trained)
    for variable, value in expected.items():
        np.testing.assert_allclose(values[variable], value, rtol=2e-4, atol=1e-6, err_msg=variable)


def fresh():
    keras.backend.clear_session()
    keras.utils.set_random_seed(3)
