"""Knobs with each other and on variables in parts: each does what it does alone.

By default on few combinations; with `--all-cases` on all strategies, more workloads and topologies.
"""

import itertools
from typing import Any

import pytest

# Where a mistake leaves workers waiting for each other, the test must not wait long.
pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]
pytest.importorskip("tensorflow")

from cases import Case
from matrix import PARTITIONED
from test_compressors import with_all
from test_ps_modes import held_back, part, plain_steps_equal, workers_of

from harness.worker.session.update_loop import UpdateLoop
from strategies.plan.schema import Compression, Plan

SERVERS = ("partitioned-ps", "uneven-partitioned-ps", "sharded-ps")
WORKLOADS = (("digits-mlp", "momentum"), ("word-lm", "adagrad"), ("digits-cnn", "adam"))
# By default few of all combinations.
SERVED = (("sharded-ps", WORKLOADS[0]), ("uneven-partitioned-ps", WORKLOADS[1]))
MODES = (("ps", "compressor"), ("sharded-ps", "proxy"))
CODED = ("partitioned-ps", "partitioned-all-reduce")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    every = metafunc.config.getoption("--all-cases")
    if "served" in metafunc.fixturenames:
        chosen = itertools.product(SERVERS, WORKLOADS) if every else SERVED
        metafunc.parametrize("served", list(chosen), ids=lambda c: f"{c[0]}-{'-'.join(c[1])}")
    if "knob" in metafunc.fixturenames:
        pairs = itertools.product(("ps", "sharded-ps"), ("compressor", "proxy")) if every else MODES
        metafunc.parametrize(("strategy", "knob"), list(pairs))
    if "coded" in metafunc.fixturenames:
        metafunc.parametrize("coded", PARTITIONED if every else CODED)


def in_parts(case: Case, strategy: str, replicas: tuple[int, ...], **params: Any) -> Plan:
    plan = case.plan(strategy, replicas, **PARTITIONED[strategy], **params)
    assert any(node.partition for node in plan.nodes)
    return plan


def test_proxies_of_parts_are_equivalent(cases, served, all_cases):
    strategy, workload = served
    case = cases.of(*workload)
    for replicas in ((2, 2), (1, 2)) if all_cases else ((1, 2),):
        plan = in_parts(case, strategy, replicas, local_proxy_variable=True)
        assert any(node.proxy and node.partition for node in plan.nodes)
        verdict = case.check(plan)
        worst = max(verdict.variables, key=lambda v: v.update_error)
        assert verdict.equivalent, f"{worst.name} is off by {worst.update_error:.1e}"
        assert verdict.tolerance < 1e-9


def test_an_asynchronous_worker_updates_all_parts_with_its_own_examples(cases, served):
    strategy, workload = served
    case = cases.of(*(workload if workload[0] != "digits-cnn" else ("digits-mlp", "adam")))
    plan = in_parts(case, strategy, (1, 1), sync=False)
    with workers_of(case, plan) as workers:
        workers.start(1, 3)
        assert workers.reach(1, 3)
        own = [part(batch, *workers.programs(1, 1)) for batch in case.batches]
        assert plain_steps_equal(case, own, workers.cluster.read())


def test_a_stale_update_of_all_parts_is_one_step_on_the_mean(cases, monkeypatch, all_cases):
    case = cases.of("word-lm", "adagrad")
    for strategy, n_workers in (("uneven-partitioned-ps", 2), ("sharded-ps", 1))[: 1 + all_cases]:
        plan = in_parts(case, strategy, (2, 1), staleness=2)
        assert takes_the_mean(case, plan, monkeypatch, n_workers=n_workers)


def takes_the_mean(case: Case, plan: Plan, monkeypatch: pytest.MonkeyPatch, *, n_workers: int) -> bool:
    """Return True if the first update, after so many pushes, is one step on all of their examples."""
    started: list[UpdateLoop] = []
    monkeypatch.setattr(UpdateLoop, "start", lambda loop: started.append(loop))  # noqa: PLW0108 - to be a method
    with workers_of(case, plan) as workers:
        for task in range(n_workers):
            workers.start(task, 1)
            assert workers.reach(task, 1)
        monkeypatch.undo()
        started[0].start()
        assert workers.updates_reach(n_workers)
        used = part(case.batches[0], *workers.programs(0, n_workers - 1))
        return plain_steps_equal(case, [used], workers.cluster.read())


LOSSLESS = Compression(name="topk", ratio=1.0)


def test_modes_with_proxies_and_compressors(cases, monkeypatch, strategy, knob):
    case = cases.of("digits-mlp", "momentum")
    params = {**PARTITIONED.get(strategy, {}), "local_proxy_variable": knob == "proxy"}

    def result(**mode: Any) -> Plan:
        plan = case.plan(strategy, (1, 2), **params, **mode)
        assert any(node.proxy for node in plan.nodes) == (knob == "proxy")
        return with_all(plan, LOSSLESS) if knob == "compressor" else plan

    assert takes_the_mean(case, result(staleness=1), monkeypatch, n_workers=2)
    with workers_of(case, result(sync=False)) as workers:
        workers.start(1, 3)
        assert workers.reach(1, 3)
        own = [part(batch, *workers.programs(1, 1)) for batch in case.batches]
        assert plain_steps_equal(case, own, workers.cluster.read())


def test_a_late_contribution_is_dropped_from_all_parts(cases):
    case = cases.of("digits-mlp", "momentum")
    plan = in_parts(case, "sharded-ps", (1, 1, 1), backup=1)
    assert held_back(case, plan) == (True, 2, [3, 3, 3])


def test_a_compressor_that_keeps_everything_is_exact(cases, coded, all_cases):
    lossless = [(Compression(name="topk", ratio=1.0), None)]
    if coded != "random-axis-partitioned-all-reduce":
        # A part with more rows than columns is not met whole by a factor of its columns.
        lossless.append((Compression(name="powersgd", rank=1000), 1e-8))
    for workload in ("wide-mlp", "word-lm") if all_cases else ("wide-mlp",):
        case = cases.of(workload, "adam")
        for compression, allowed in lossless:
            plan = with_all(in_parts(case, coded, (2, 1)), compression)
            assert any(node.compressor and node.partition for node in plan.nodes)
            verdict = case.check(plan)
            worst = max(verdict.variables, key=lambda v: v.update_error)
            most = verdict.tolerance if allowed is None else allowed
            assert worst.update_error <= most, f"{worst.name} is off by {worst.update_error:.1e}"
