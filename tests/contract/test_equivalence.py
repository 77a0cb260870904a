"""Every exact strategy computes what one device computes, in float64, and `none` does not.

By default on few combinations of workload, optimizer and topology, which hold every pair of them, and on
each of them every strategy; with `--all-cases` on all of them.
"""

import itertools

import pytest
from covering import covering
from matrix import EXACT, OPTIMIZERS, TOPOLOGIES, WORKLOADS

pytestmark = pytest.mark.tensorflow

FACTORS = {"workload": WORKLOADS, "optimizer": OPTIMIZERS, "replicas": TOPOLOGIES}


def pytest_generate_tests(metafunc):
    if "combination" not in metafunc.fixturenames:
        return
    if metafunc.config.getoption("--all-cases"):
        chosen = list(itertools.product(*FACTORS.values()))
    else:
        chosen = covering(FACTORS, list(itertools.combinations(FACTORS, 2)))
    # Neighbours share a capture.
    chosen.sort(key=lambda choice: (WORKLOADS.index(choice[0]), OPTIMIZERS.index(choice[1])))
    metafunc.parametrize("combination", chosen, ids=lambda c: "-".join((*c[:2], "+".join(map(str, c[2])))))


@pytest.fixture
def case(cases, combination):
    return cases.of(*combination[:2])


@pytest.mark.parametrize("strategy", EXACT)
def test_an_exact_strategy_computes_what_one_device_computes(case, combination, strategy):
    plan = case.plan(strategy, combination[2])
    assert plan.strategy_class == "exact"
    verdict = case.check(plan)
    worst = max(verdict.variables, key=lambda v: v.update_error)
    assert verdict.equivalent, (
        f"{worst.name} is off by {worst.update_error:.1e}, allowed {verdict.tolerance:.1e}"
    )
    # A tolerance that anything fits into would find nothing.
    assert verdict.tolerance < 1e-9


def test_replicas_that_do_not_communicate_drift_apart(case, combination):
    plan = case.plan("none", combination[2])
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
    from strategies.passes.of_plan import passes_of, topology_of
    from strategies.passes.pipeline import run_passes

    case = cases.of("digits-mlp", "momentum")
    plan = case.plan(strategy, (1,))
    assert plan.notes == (f"one replica: {strategy} leaves the captured graph unchanged",)
    assert run_passes(passes_of(plan, 0), case.step, topology_of(plan)).step is case.step
    assert case.check(plan).equivalent


def test_a_model_without_cross_example_operations_equals_the_whole_batch(cases):
    """Sharding the batch changes nothing where examples do not meet: the reference itself is checked so."""
    from harness.worker.check import make_reference

    case = cases.of("digits-mlp", "adamw-clipped")
    whole = make_reference(case.step, case.initial, case.topology((1,)), case.batches)
    assert whole.yardstick.judge(case.reference((2, 1)).yardstick.values).equivalent


def test_cross_example_operations_see_their_shard_only(cases):
    """With batch statistics the sharded reference differs from the whole batch, as SEMANTICS says it may."""
    from harness.worker.check import make_reference

    case = cases.of("digits-cnn", "momentum")
    whole = make_reference(case.step, case.initial, case.topology((1,)), case.batches)
    shared = {k: v for k, v in case.reference((2, 1)).yardstick.values.items() if k[1] is None}
    assert not whole.yardstick.judge(shared).equivalent
