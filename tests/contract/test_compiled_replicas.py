"""Steps cut at their sums, of which XLA compiles each segment: replicas train what one device does.

By default some models are trained, which differ in what lies between sums; with `--all-cases` all are.
"""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
from matrix import NOT_ON_CORES

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]
tf = pytest.importorskip("tensorflow")

import keras
import replica_process
from cases import case_of
from model import on_rows
from models import MODELS
from state_models import descent, kernel

from harness.verification.reference import Outcome
from strategies.capture.capture import capture
from strategies.compile import compile_replica
from strategies.errors import UnsupportedError
from strategies.ir.graph import producer
from strategies.ir.random_ops import draws_at_random
from strategies.ir.traversal import ancestors
from strategies.passes.pass_order import passes_of
from strategies.passes.run import run_passes
from strategies.passes.tpu.replicated_computation import DONE, PREFIX, ReplicatedComputation
from strategies.planner import topology_of
from strategies.registry import make_plan
from strategies.tf_bridge.graphdef import graph_from_graphdef

CHOSEN = {
    "digits-mlp+adamw-clipped": "updates that need the sums of all gradients",
    "word-lm+adam": "a loop whose gradient is one, and gradients of rows",
    "keras-mixed-precision-of-its-own": "two types, a loss scale, and updates in a branch",
    "accumulated": "updates of every other step, in a branch",
    "normalised": "state that is a mean",
    "summed-state": "state that is a sum",
    "recurrent": "loops in functions",
    "adversarial": "gradients of gradients: a second round of sums",
    "thrice": "three rounds",
    "spectral-critic": "state that only the first replica tells",
    "tensorflow-adam": "an optimizer of TensorFlow's own",
    "keras-own-step": "random numbers",
}
"""Model → what it has that others have not."""
OUTPUT = f"{PREFIX}output_0/given"
_FRAME = "its loops must be functions, got .* of a loop of TensorFlow 1"
REFUSED = {
    **NOT_ON_CORES,
    **dict.fromkeys(
        ("first-loop", "first-loops-nested", "first-loop-in-step", "first-loops-in-step"), _FRAME
    ),
    **dict.fromkeys(("noisy", "noisy-labels", "sampled-rows"), "random numbers must use seeds"),
    "looked-up-in-a-loop": "XLA must be able to compile it, got .*ResourceGatherNd",
}
"""Model → why replicas do not compile it."""


def counted_examples():
    """The rate falls with the examples seen, whose number a trace of known shapes takes for a constant."""
    w = kernel()
    seen = tf.Variable(0, trainable=False, name="seen")

    @tf.function
    def train(x):
        seen.assign_add(tf.shape(x)[0])
        with tf.GradientTape() as tape:
            value = tf.reduce_mean((x * w - 1) ** 2)
        w.assign_sub(tape.gradient(value, w) / tf.cast(seen, tf.float32))
        return value

    return on_rows(train)


def growing_array():
    w = kernel()

    def loss(x):
        array = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
        for i in tf.range(3):
            array = array.write(i, tf.reduce_mean(x[:, i] * w[i]))
        return tf.reduce_mean((array.stack() - 1) ** 2)

    return on_rows(descent(loss, w))


def until_large():
    """A loop that ends for no example of zeros."""
    w = kernel()

    def loss(x):
        large = tf.while_loop(lambda y: tf.reduce_max(tf.abs(y)) < 10.0, lambda y: y * 2.0, [x])[0]
        return tf.reduce_mean((x * w - 1) ** 2) + 0.01 * tf.reduce_mean(tf.stop_gradient(large) * w)

    return on_rows(descent(loss, w))


OWN = {"counted-examples": counted_examples, "growing-array": growing_array, "until-large": until_large}
CHOSEN |= {"counted-examples": "a sum of whole numbers", "until-large": "a loop that ends by its data"}
REFUSED |= {"growing-array": "each tf.TensorArray must have its size, got '"}
ALIKE = ("word-lm+adagrad", "word-lm+rmsprop")
"""Models that cores refuse for the reason of `shared-embedding`: their optimizer asks which rows moved."""


def pytest_generate_tests(metafunc):
    all_cases = metafunc.config.getoption("--all-cases")
    if "refused" in metafunc.fixturenames:
        metafunc.parametrize("refused", [name for name in REFUSED if all_cases or name not in ALIKE])
    if "n_replicas" not in metafunc.fixturenames:
        return
    if all_cases:
        chosen = [(name, n) for name in MODELS | OWN if name not in REFUSED for n in (2, 4)]
    else:
        chosen = [*((name, 2) for name in CHOSEN), ("averaged-state", 4)]
    metafunc.parametrize(("name", "n_replicas"), chosen)


@pytest.fixture(scope="module")
def apart():
    with ProcessPoolExecutor(
        1, multiprocessing.get_context("spawn"), initializer=replica_process.begin
    ) as pool:
        yield pool


def built(name):
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    return (MODELS | OWN)[name]()


def compilable(name, folder, n_replicas):
    """A model captured for replicas of known shapes, with batches that they share evenly, and its plan."""
    model = built(name)
    n = len(model.batches[0][0]) // n_replicas * n_replicas
    free = capture(model.step, model.spec, replica_batch=n // n_replicas)
    rules = {v.name: v.rule for v in free.step.variables if v.rule is not None}
    model = built(name)
    with_rules = capture(model.step, model.spec, replica_batch=n // n_replicas, compiled_rules=rules)
    case = case_of(with_rules, [[part[:n] for part in batch] for batch in model.batches], folder)
    topology = replace(case.topology((n_replicas,)), device="tpu")
    return case, make_plan("tpu-replicate", {}, case.summary, topology)


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    """Case, plan and folder of a model for a number of replicas, each captured once."""
    shared = tmp_path_factory.mktemp("captured")

    @cache
    def captured_once(name, n_replicas):
        folder = shared / f"{name}-{n_replicas}"
        return *compilable(name, folder, n_replicas), folder

    return captured_once


def verdict_on(case, plan, folder, apart):
    n_replicas = sum(plan.replicas_per_task)
    training = apart.submit(replica_process.trained, case.step, folder, plan, case.batches, 2)
    values, losses = training.result()
    reference = case.reference((n_replicas,), merges_rows=topology_of(plan).merges_rows)
    return reference.judge(Outcome(values=values, losses=losses))


def test_replicas_train_what_one_device_does(name, n_replicas, captured, apart):
    case, plan, folder = captured(name, n_replicas)
    verdict = verdict_on(case, plan, folder, apart)
    if draws_at_random(case.step.graph):
        # XLA draws other numbers than TensorFlow's kernels do, from states that are those of the reference.
        own_state = {v.name for v in case.step.variables if v.rule == "per-replica"}
        assert {v.name for v in verdict.variables if v.update_error == 0} >= own_state
        assert own_state
    else:
        assert verdict.equivalent is True, verdict.reason
    assert verdict.tolerance < 1e-9


@pytest.mark.parametrize("name", ["normalised", "recurrent"])
def test_loops_of_devices_make_the_steps_that_loops_of_the_host_do(name, captured, apart):
    case, plan, folder = captured(name, 2)
    args = (case.step, folder, plan, case.batches)
    on_host, on_device = (
        apart.submit(partial(replica_process.trained_alone, *args, on_device=on_device)).result()
        for on_device in (False, True)
    )
    assert on_device[1] == on_host[1]
    assert len(set(on_host[1])) == len(case.batches)
    for copy, value in on_host[0].items():
        assert np.array_equal(on_device[0][copy], value), copy


def test_examples_are_counted_on_all_replicas(captured, apart):
    case, plan, folder = captured("counted-examples", 2)
    assert {v.name: v.rule for v in case.step.variables if v.kind == "state"} == {"seen": "sum"}
    training = apart.submit(replica_process.trained, case.step, folder, plan, case.batches, 2)
    values, _ = training.result()
    assert {values["seen", rank] for rank in range(2)} == {sum(len(x) for (x,) in case.batches)}


def test_replicas_that_keep_their_gradients_are_noticed(captured, apart):
    case, plan, folder = captured("normalised", 2)
    apart.submit(replica_process.drop_sums).result()
    try:
        assert not verdict_on(case, plan, folder, apart).equivalent
    finally:
        apart.submit(replica_process.restore_sums).result()


def test_what_cannot_be_compiled_is_refused_in_a_line(refused, tmp_path, apart):
    case, plan = compilable(refused, tmp_path, 2)
    with pytest.raises(UnsupportedError, match=REFUSED[refused]) as raised:
        verdict_on(case, plan, tmp_path, apart)
    assert "\n" not in str(raised.value)


@pytest.fixture(scope="module", params=["thrice", "normalised", "word-lm+adam"])
def program(request, captured):
    case, plan, _ = captured(request.param, 2)
    return compile_replica(case.step, plan)


class TestSegments:
    def test_each_has_what_is_fed_summed_or_an_output_before(self, program):
        known = {*program.batch, *program.variables, program.rank}
        for segment in program.segments:
            assert set(segment.inputs) <= known
            known |= {*segment.outputs}
            assert set(segment.sums.values()) <= known
            known |= {*segment.sums}
        assert program.loss in known

    def test_a_node_is_in_one_of_them_but_for_constants(self, program):
        seen = set()
        for graph in map(graph_of, program.segments):
            own = {n.name for n in graph.nodes if not pure(graph, n)}
            assert not own & seen
            seen |= own

    def test_there_is_one_more_than_sums_that_wait_for_each_other(self, captured):
        case, plan, _ = captured("thrice", 2)
        n_sums = [len(segment.sums) for segment in compile_replica(case.step, plan).segments]
        n_levels = max(b.level for b in case.step.boundaries)
        assert len(n_sums) == n_levels + 1
        assert sum(n_sums) == len(case.step.boundaries)
        assert n_sums[-1] == 0

    @pytest.mark.parametrize("name", ["thrice", "normalised", "accumulated"])
    def test_every_node_runs_and_waits_for_what_it_waited_for(self, name, captured):
        case, plan, _ = captured(name, 2)
        step = run_passes(passes_of(plan, 0), case.step, topology_of(plan), check=False).step
        body = {node.name: node for node in ReplicatedComputation.of(step).body}
        segments = compile_replica(case.step, plan).segments
        needed = ancestors(step.graph, [DONE], stop=step.graph.by_name.keys() - body.keys())
        needed |= ancestors(step.graph, [OUTPUT], stop=step.graph.by_name.keys() - body.keys())
        here = [{node.name: node for node in graph_of(segment).nodes} for segment in segments]
        sums = {name for segment in segments for name in segment.sums}
        groups = {producer(body[name].data_inputs[1]) for name in sums}
        assert set().union(*here) == needed - sums - groups - {DONE}
        for place, nodes in enumerate(here):
            for node in nodes.values():
                for wait in body[node.name].control_inputs:
                    if wait in nodes:
                        assert wait in node.control_inputs
                    elif wait in body:
                        (before,) = (k for k in range(place) if wait in here[k])
                        assert wait in segments[before].targets


def graph_of(segment):
    return graph_from_graphdef(tf.compat.v1.GraphDef.FromString(segment.graph_def))


def pure(graph, node):
    """Return True if a node depends on constants of its graph only."""
    by_name = graph.by_name
    waiting = [node]
    for one in waiting:
        if one.op in ("ReadVariableOp", "Placeholder") or any(
            producer(ref) not in by_name for ref in one.data_inputs
        ):
            return False
        waiting += [by_name[producer(ref)] for ref in one.data_inputs]
    return True
