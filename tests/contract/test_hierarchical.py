"""One replica speaks for each worker: the same numbers as one device, and mistakes are noticed."""

import itertools
from dataclasses import replace

import pytest

# Where a mistake leaves workers waiting for each other, the test must not wait long.
pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]
tf = pytest.importorskip("tensorflow")

from matrix import OPTIMIZERS, WORKLOADS
from test_mutations import after, broken, noticed, without

from strategies.ir.text import to_text
from strategies.ir.traversal import prune
from strategies.passes.pass_order import passes_of
from strategies.passes.run import run_passes
from strategies.planner import topology_of

NAME = "hierarchical-all-reduce"
REPLICAS = ((2, 2), (2, 1), (1, 2), (2,), (2, 1, 1))
# Optimizers see nothing of how gradients travel; rows and forward state travel in ways of their own.
CHOSEN = [
    ("digits-mlp", "adamw-clipped", (2, 1)),
    ("digits-cnn", "momentum", (2,)),
    ("digits-cnn", "adam", (1, 2)),
    ("digits-cnn", "rmsprop", (2, 1, 1)),
    ("word-lm", "momentum", (2,)),
    ("word-lm", "adagrad", (2, 1)),
    ("word-lm", "rmsprop", (2, 2)),
]


def pytest_generate_tests(metafunc):
    if "combination" not in metafunc.fixturenames:
        return
    every = list(itertools.product(WORKLOADS, OPTIMIZERS, REPLICAS))
    chosen = every if metafunc.config.getoption("--all-cases") else CHOSEN
    metafunc.parametrize("combination", chosen, ids=lambda c: "-".join((*c[:2], "+".join(map(str, c[2])))))


def test_equivalent(cases, combination):
    workload, optimizer, replicas = combination
    case = cases.of(workload, optimizer)
    plan = case.plan(NAME, replicas)
    assert plan.strategy_class == "exact"
    verdict = case.check(plan)
    worst = max(verdict.variables, key=lambda v: v.update_error)
    assert verdict.equivalent, f"{worst.name} is off by {worst.update_error:.1e}"
    assert verdict.tolerance < 1e-9


@pytest.mark.parametrize("params", [{"chunk_size": 1}, {"bucket_bytes": 300}])
def test_in_buckets_of_any_size(cases, params):
    case = cases.of("digits-cnn", "momentum")
    plan = case.plan(NAME, (2, 1), **params)
    assert len({node.group for node in plan.nodes if node.group is not None}) > 1
    assert case.check(plan).equivalent


def transformed(case, plan):
    topology = topology_of(plan)
    return [run_passes(passes_of(plan, t), case.step, topology).step for t in range(topology.n_tasks)]


@pytest.mark.parametrize("workload", ["word-lm", "digits-cnn"])
def test_with_one_replica_on_each_worker_it_is_all_reduce(cases, workload):
    case = cases.of(workload, "momentum")
    ours, theirs = (transformed(case, case.plan(name, (1, 1, 1))) for name in (NAME, "all-reduce"))
    assert [to_text(step.graph) for step in ours] == [to_text(step.graph) for step in theirs]


@pytest.mark.parametrize("workload", ["word-lm", "digits-cnn"])
def test_collectives_have_one_member_on_each_worker(cases, workload):
    """And a lone worker has none, for what its leader collected is all there is."""
    case = cases.of(workload, "momentum")
    apart = case.plan(NAME, (2, 1), transport="ring")
    counts = []
    for step in (*transformed(case, apart), *transformed(case, case.plan(NAME, (3,)))):
        nodes = prune(step.graph, step.roots()).nodes
        counts.append(sorted(node.op for node in nodes if node.op.startswith("Collective")))
    assert counts[0] == counts[1]
    assert counts[0]
    assert counts[2] == []


def only_the_leaders_own(step, _):
    return replace(
        step, boundaries=tuple(replace(b, contributions=b.contributions[:1]) for b in step.boundaries)
    )


MISTAKES = {
    "nothing-handed-on": without("leader-broadcast"),
    "others-left-out": after("leader-reduce", only_the_leaders_own),
    "workers-apart": without("dense-all-reduce"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_noticed(cases, mistake):
    case = cases.of("digits-mlp", "momentum")
    plan = case.plan(NAME, (2, 1), transport="ring")
    assert noticed(case, plan, broken(case, plan, MISTAKES[mistake]))


@pytest.mark.parametrize(
    ("transport", "gathering"), [("ring", "sparse-all-gather"), ("tcp", "tcp-all-reduce")]
)
def test_rows_that_stay_in_their_worker_are_noticed(cases, transport, gathering):
    case = cases.of("word-lm", "momentum")
    plan = case.plan(NAME, (2, 1), transport=transport)
    assert noticed(case, plan, broken(case, plan, without(gathering)))
