"""Knobs on variables in parts: proxies stay exact; modes and compressors treat parts like variables.

By default on combinations that hold every strategy; with `--all-cases` on more workloads and topologies.
"""

from typing import Any

import pytest

# Where a mistake leaves workers waiting for each other, the test must not wait long.
pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]
pytest.importorskip("tensorflow")

from cases import Case  # noqa: E402
from matrix import PARTITIONED  # noqa: E402
from test_compressors import with_all  # noqa: E402
from test_ps_modes import held_back, part, plain_steps_equal, workers_of  # noqa: E402

from harness.worker.update_loop import UpdateLoop  # noqa: E402
from strategies.plan import Compression, Plan  # noqa: E402

SERVERS = ("partitioned-ps", "uneven-partitioned-ps", "sharded-ps")
WORKLOADS = (("digits-mlp", "adamw-clipped"), ("word-lm", "adagrad"), ("digits-cnn", "adam"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "served" not in metafunc.fixturenames:
        return
    chosen = list(zip(SERVERS, WORKLOADS, strict=True))
    if metafunc.config.getoption("--all-cases"):
        chosen = [(strategy, workload) for strategy in SERVERS for workload in WORKLOADS]
    metafunc.parametrize("served", chosen, ids=lambda c: f"{c[0]}-{'-'.join(c[1])}")


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


@pytest.mark.parametrize(("strategy", "together"), [("sharded-ps", False), ("uneven-partitioned-ps", True)])
def test_a_stale_update_of_all_parts_is_one_step_on_the_mean(cases, monkeypatch, strategy, together):
    case = cases.of("word-lm", "adagrad")
    started: list[UpdateLoop] = []
    monkeypatch.setattr(UpdateLoop, "start", lambda loop: started.append(loop))  # noqa: PLW0108 - to be a method
    plan = in_parts(case, strategy, (2, 1), staleness=2)
    with workers_of(case, plan) as workers:
        for task in range(1 + together):
            workers.start(task, 1)
            assert workers.reach(task, 1)
        monkeypatch.undo()
        started[0].start()
        assert workers.updates_reach(1 + together)
        used = part(case.batches[0], *workers.programs(0, int(together)))
        assert plain_steps_equal(case, [used], workers.cluster.read())


def test_a_late_contribution_is_dropped_from_all_parts(cases):
    case = cases.of("digits-mlp", "momentum")
    plan = in_parts(case, "sharded-ps", (1, 1, 1), backup=1)
    assert held_back(case, plan) == (True, 2, [3, 3, 3])


@pytest.mark.parametrize("strategy", PARTITIONED)
def test_a_compressor_that_keeps_everything_is_exact(cases, strategy, all_cases):
    lossless = [(Compression(name="topk", ratio=1.0), None)]
    if strategy != "random-axis-partitioned-all-reduce":
        # A part with more rows than columns is not met whole by a factor of its columns.
        lossless.append((Compression(name="powersgd", rank=1000), 1e-8))
    for workload in ("wide-mlp", "word-lm") if all_cases else ("wide-mlp",):
        case = cases.of(workload, "adam")
        for compression, allowed in lossless:
            plan = with_all(in_parts(case, strategy, (2, 1)), compression)
            assert any(node.compressor and node.partition for node in plan.nodes)
            verdict = case.check(plan)
            worst = max(verdict.variables, key=lambda v: v.update_error)
            most = verdict.tolerance if allowed is None else allowed
            assert worst.update_error <= most, f"{worst.name} is off by {worst.update_error:.1e}"
