"""Steps that assign, read, update and take gradients in a row end where TensorFlow's own run of them ends."""

import itertools
import re

import keras
import numpy as np
import pytest
from covering import covering
from matrix import ROWS

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]
tf = pytest.importorskip("tensorflow")

from models import ASSIGNING, MODELS, SEQUENCES

from harness.verification.reference import Outcome
from harness.verification.worker import shard_steps
from harness.verification.worker.check import make_reference
from harness.verification.worker.in_process import InProcessCluster, programs_of
from harness.worker.session.capture_store import InitialValues, save
from strategies.capture.boundary import raw_variable, variable_name
from strategies.capture.capture import capture
from strategies.errors import StrategyError
from strategies.passes.collectives import all_reduce
from strategies.passes.replicate import hoist_reads
from strategies.topology import Topology

STRATEGIES = ("all-reduce", "ps", "partitioned-ps", "sharded-update", "fully-sharded")
TOPOLOGIES = ((2, 1), (1, 2), (2, 2))
# BatchNormalization lets examples meet, and each shard draws its own numbers.
COUPLED = ("adversarial", "noisy", "noisy-labels")
SEPARABLE = [name for name in (*ASSIGNING, *SEQUENCES) if name not in COUPLED]
UPDATES_IN_TURN = "needs all gradients before the first update, got one after it; leave it out"


def pytest_generate_tests(metafunc):
    if "combination" not in metafunc.fixturenames:
        return
    factors = {"model": (*ASSIGNING, *SEQUENCES), "replicas": TOPOLOGIES, "strategy": STRATEGIES}
    if metafunc.config.getoption("--all-cases"):
        chosen = list(itertools.product(*factors.values()))
    else:  # each model meets each strategy in the equivalence matrix
        chosen = covering(factors, [("model", "replicas"), ("replicas", "strategy")])
    metafunc.parametrize("combination", chosen, ids=lambda c: f"{c[0]}-{'+'.join(map(str, c[1]))}-{c[2]}")


def test_every_level_is_synchronised_in_its_turn(cases, combination):
    model, replicas, strategy = combination
    case = cases.model(model)
    verdict = case.check(case.plan(strategy, replicas, **ROWS[strategy][1]))
    worst = max(verdict.variables, key=lambda v: v.update_error)
    assert verdict.equivalent, f"{worst.name} is off by {worst.update_error:.1e}"


@pytest.mark.parametrize("strategy", ["all-reduce", "ps", "sharded-update", "fully-sharded"])
def test_all_turns_of_the_reference_have_the_same_draws(cases, monkeypatch, strategy):
    """An optimizer that counts its updates waits for gradients, and has a later turn make them once more."""
    case = cases.model("noisy-labels")
    plan = case.plan(strategy, (2, 1))
    assert case.check(plan).equivalent


def test_draws_of_another_turn_are_noticed(cases, monkeypatch):
    case = cases.model("noisy-labels")
    plan = case.plan("all-reduce", (2, 1))
    monkeypatch.setattr(shard_steps, "_draws", lambda _: frozenset())
    wrong = make_reference(case.step, case.initial, case.topology((2, 1)), case.batches)
    with InProcessCluster(programs_of(case.step, plan), case.initial) as cluster:
        losses = cluster.steps(case.batches)
        assert wrong.judge(Outcome(values=cluster.read(), losses=losses)).equivalent is False


@pytest.mark.parametrize("strategy", ["all-reduce", "ps"])
def test_a_stale_read_after_an_update_is_noticed(cases, monkeypatch, strategy):
    case = cases.model("penalised")
    plan = case.plan(strategy, (2, 1))
    assert case.check(plan).equivalent
    # All reads become the first one.
    monkeypatch.setattr(hoist_reads, "after_updates", lambda *_: set())
    assert not case.run(plan, programs_of(case.step, plan)).equivalent


@pytest.mark.parametrize("level", [1, 2])
def test_a_level_that_is_not_synchronised_is_noticed(cases, monkeypatch, level):
    case = cases.model("sharpness-aware")
    plan = case.plan("all-reduce", (2, 1), transport="ring")
    assert case.check(plan).equivalent
    sound = all_reduce.collectives

    def without_level(dense, *args, **kw):
        return sound([b for b in dense if b.level != level], *args, **kw)

    monkeypatch.setattr(all_reduce, "collectives", without_level)
    assert not case.run(plan, programs_of(case.step, plan)).equivalent


@pytest.mark.parametrize(
    ("strategy", "replicas", "params", "rule"),
    [
        ("ps", (2, 1), {"sync": False}, UPDATES_IN_TURN),
        ("ps", (2, 1), {"staleness": 1}, UPDATES_IN_TURN),
        ("ps", (1, 1, 1), {"backup": 1}, UPDATES_IN_TURN),
        ("all-reduce", (2, 1), {"accumulate": 2}, "share one gradient and update in a step, got 2 in a row"),
        ("all-reduce", (2, 1), {"compressor": "fp16"}, "one gradient and update in a step, got 2 in a row"),
        ("ps", (2, 1), {"compressor": "fp16"}, "one gradient and update in a step, got 2 in a row"),
    ],
)
def test_what_has_one_update_in_a_step_says_so(cases, strategy, replicas, params, rule):
    case = cases.model("penalised")
    with pytest.raises(StrategyError, match=re.escape(rule)) as caught:
        programs_of(case.step, case.plan(strategy, replicas, **params))
    assert "\n" not in str(caught.value)


def test_bytes_count_every_crossing_read_and_update(cases):
    case = cases.model("penalised")
    w, other = (next(v for v in case.summary.variables if v.name == n) for n in ("w", "other"))
    assert [(v.crossings, v.reads, v.updates) for v in (w, other)] == [(2, 2, 2)] * 2
    n_bytes = w.bytes + other.bytes
    assert case.plan("ps", (1, 1)).payload_bytes_per_step == (2 + 2) * n_bytes
    assert case.plan("all-reduce", (1, 1)).payload_bytes_per_step == 2 * 2 * n_bytes


def run_as_it_is(model):
    """The values that the user's own function leaves, by name, after all batches as wholes."""
    for batch in model.batches:
        model.step(tf.nest.pack_sequence_as(model.spec, [tf.constant(part) for part in batch]))
    return {variable_name(v): raw_variable(v).numpy() for v in model.owned}


@pytest.mark.parametrize("name", [*ASSIGNING, *SEQUENCES])
def test_the_reference_ends_where_the_users_function_does(name, tmp_path):
    """The capture runs as it was written: on one device, in the model's own type."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    model = MODELS[name]()
    captured = capture(model.step, model.spec)
    before = dict(captured.initial)
    save(tmp_path, captured.step, captured.initial)
    alone = Topology(replicas_per_task=(1,), batch_size=len(model.batches[0][0]))
    reference = make_reference(captured.step, InitialValues(tmp_path), alone, model.batches)
    values = {name: value for (name, _), value in reference.values.items()}
    plain = run_as_it_is(model)
    assert values.keys() == plain.keys()
    for variable, value in plain.items():
        moved = np.max(np.abs(value - before[variable].astype(value.dtype)), initial=1e-3)
        assert np.max(np.abs(values[variable] - value), initial=0) <= 2e-4 * moved, variable


@pytest.mark.parametrize(
    ("name", "replicas"), list(zip(SEPARABLE, itertools.cycle(TOPOLOGIES), strict=False))
)
def test_shards_together_are_the_whole_batch(cases, name, replicas):
    """None of these models lets examples meet, so that shards change nothing."""
    case = cases.model(name)
    whole = make_reference(case.step, case.initial, case.topology((1,)), case.batches)
    assert whole.judge(Outcome(values=case.reference(replicas).values)).equivalent
