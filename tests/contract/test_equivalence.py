"""Every exact strategy computes what one device computes, in float64, and `none` does not.

By default every strategy meets each of a few models, and among these every topology; with `--all-cases` every
strategy meets every model on every topology.
"""

import itertools

import pytest
from matrix import CORE_ROWS, EXACT, ROWS, TOPOLOGIES, refusal

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from models import FEW, MODELS

from harness.verification.reference import Outcome
from harness.verification.worker.in_process import programs_of
from strategies.errors import UnsupportedError

EVERY_ROW = {**ROWS, **CORE_ROWS}


def pytest_generate_tests(metafunc):
    if "combination" not in metafunc.fixturenames:
        return
    if metafunc.config.getoption("--all-cases"):
        chosen = list(itertools.product(MODELS, TOPOLOGIES, EVERY_ROW))
    else:
        # A model has one topology, for a reference takes as long as several strategies.
        pairs = zip(FEW, itertools.cycle(TOPOLOGIES), strict=False)
        chosen = [(*pair, row) for pair in pairs for row in ROWS]
    metafunc.parametrize("combination", chosen, ids=lambda c: f"{c[0]}-{'+'.join(map(str, c[1]))}-{c[2]}")


def test_an_exact_strategy_computes_what_one_device_computes(cases, combination):
    model, replicas, row = combination
    strategy, params = EVERY_ROW[row]
    case = cases.model(model).for_row(row, replicas)
    if (reason := refusal(model, row)) is not None:
        with pytest.raises(UnsupportedError, match=reason) as refused:
            programs_of(case.step, case.plan(strategy, replicas, **params))
        assert "\n" not in str(refused.value)
        return
    plan = case.plan(strategy, replicas, **params)
    assert plan.strategy_class == "exact"
    verdict = case.check_once(plan)
    worst = max(verdict.variables, key=lambda v: v.update_error)
    assert verdict.equivalent, (
        f"{worst.name} is off by {worst.update_error:.1e}, allowed {verdict.tolerance:.1e}"
    )
    # A tolerance that anything fits into would find nothing.
    assert verdict.tolerance < 1e-9


@pytest.mark.parametrize("replicas", [(2,), (2, 1)], ids=str)
@pytest.mark.parametrize("model", FEW[:4])
def test_replicas_that_do_not_communicate_drift_apart(cases, model, replicas):
    case = cases.model(model)
    plan = case.plan("none", replicas)
    assert plan.strategy_class == "control"
    assert plan.payload_bytes_per_step == 0
    verdict = case.check(plan)
    assert not verdict.equivalent
    # Not by a hair: every trainable of some replica differs.
    trainables = [v for v in verdict.variables if v.kind == "trainable"]
    assert min(v.update_error for v in trainables) > 1e3 * verdict.tolerance


@pytest.mark.parametrize(
    "params", [{"chunk_size": 1}, {"chunk_size": 2, "transport": "ring"}, {"bucket_bytes": 300}]
)
@pytest.mark.parametrize("workload", ["digits-cnn", "word-lm"])
def test_all_reduce_in_buckets_of_any_size(cases, workload, params):
    case = cases.of(workload, "adam")
    plan = case.plan("all-reduce", (2, 1), **params)
    assert len({node.group for node in plan.nodes if node.group is not None}) > 1
    assert case.check(plan).equivalent


@pytest.mark.parametrize("strategy", ["none", *EXACT])
def test_a_single_replica_keeps_the_captured_step(cases, strategy):
    from strategies.passes.pass_order import passes_of
    from strategies.passes.run import run_passes
    from strategies.planner import topology_of

    case = cases.of("digits-mlp", "momentum")
    plan = case.plan(strategy, (1,), fused_update=False)
    assert plan.notes == (f"one replica: {strategy} leaves the captured graph unchanged",)
    assert run_passes(passes_of(plan, 0), case.step, topology_of(plan)).step is case.step
    assert case.check(plan).equivalent
    fused = case.plan(strategy, (1,))
    assert fused.notes == (f"{plan.notes[0]} apart from its updates",)
    assert case.check(fused).equivalent


def test_a_model_without_cross_example_operations_equals_the_whole_batch(cases):
    """Sharding the batch changes nothing where examples do not meet: the reference itself is checked so."""
    from harness.verification.worker.check import make_reference

    case = cases.of("digits-mlp", "adamw-clipped")
    whole = make_reference(case.step, case.initial, case.topology((1,)), case.batches)
    assert whole.judge(Outcome(values=case.reference((2, 1)).values)).equivalent


def test_cross_example_operations_see_their_shard_only(cases):
    """With batch statistics the sharded reference differs from the whole batch, as SEMANTICS says it may."""
    from harness.verification.worker.check import make_reference

    case = cases.of("digits-cnn", "momentum")
    whole = make_reference(case.step, case.initial, case.topology((1,)), case.batches)
    shared = {k: v for k, v in case.reference((2, 1)).values.items() if k[1] is None}
    assert not whole.judge(Outcome(values=shared)).equivalent
