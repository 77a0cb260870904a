"""Plans for GPUs, run where there are none: TensorFlow puts what names a GPU on the CPU of the same task."""

import itertools
from dataclasses import replace

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600)]
tf = pytest.importorskip("tensorflow")

from harness.verification.worker.in_process import programs_of
from strategies.baselines import distribution
from strategies.errors import StrategyError
from strategies.ir.traversal import ancestors
from strategies.passes.pass_order import passes_of
from strategies.passes.run import run_passes
from strategies.plan.exchanges import collectives
from strategies.planner import topology_of
from strategies.registry import make_plan

COLLECTIVE = "CollectiveReduceV2"


def gpu_plan(case, strategy, replicas, **params):
    return make_plan(strategy, params, case.summary, replace(case.topology(replicas), device="gpu"))


@pytest.mark.parametrize(
    ("strategy", "replicas"), [("all-reduce", (1, 1)), ("hierarchical-all-reduce", (2, 1))]
)
def test_a_plan_for_replicas_that_share_a_gpu_computes_what_one_device_computes(cases, strategy, replicas):
    case = cases.of("digits-mlp", "momentum")
    topology = replace(case.topology(replicas), device="gpu", shares_devices=True)
    plan = make_plan(strategy, {}, case.summary, topology)
    programs = programs_of(case.step, plan)
    for program in programs:
        graph = tf.compat.v1.GraphDef.FromString(program.graph_def)
        sums = [node for node in graph.node if node.op == COLLECTIVE]
        assert {node.attr["communication_hint"].s for node in sums} <= {b"ring"}
        assert sums
    assert case.run(plan, programs).equivalent


@pytest.mark.parametrize(
    ("strategy", "params"),
    [("all-reduce", {"chunk_size": 1}), ("ps", {}), ("sharded-update", {"min_bytes": 1})],
)
def test_a_plan_for_gpus_computes_what_one_device_computes(cases, strategy, params):
    case = cases.of("digits-mlp", "momentum")
    plan = gpu_plan(case, strategy, (1, 1), **params)
    programs = programs_of(case.step, plan)
    assert case.run(plan, programs).equivalent
    for task, program in enumerate(programs):
        graph = tf.compat.v1.GraphDef.FromString(program.graph_def)
        own = f"/job:worker/replica:0/task:{task}/device:"
        of_replica = {n.device for n in graph.node if n.op in ("MatMul", COLLECTIVE)}
        assert of_replica == {f"{own}GPU:0"}
        others = {n.device.rpartition("/device:")[2] for n in graph.node} - {"GPU:0"}
        assert others <= {"CPU:0", ""}


@pytest.mark.parametrize(("shares", "implementation"), [(True, "RING"), (False, "AUTO")])
def test_tensorflows_own_strategy_is_given_its_ring_where_replicas_share_a_gpu(
    cases, monkeypatch, shares, implementation
):
    case = cases.of("digits-mlp", "momentum")
    topology = replace(case.topology((1, 1)), device="gpu", shares_devices=shares)
    plan = make_plan("tf-multi-worker-mirrored", {}, case.summary, topology)
    monkeypatch.setattr(distribution, "_MultiWorkerMirrored", lambda resolver, options: options)
    options = distribution.distribution_of(plan, 0, ["a:1"], 1).strategy
    assert options.implementation.name == implementation


def test_sums_by_nccl_begin_in_the_same_order_on_every_replica(cases):
    case = cases.of("digits-mlp", "momentum")
    plan = gpu_plan(case, "all-reduce", (2, 1), chunk_size=1)
    assert {node.transport for node in plan.nodes} == {"nccl", None}
    order = {}
    for task in range(2):
        graph = run_passes(passes_of(plan, task), case.step, topology_of(plan)).step.graph
        for replica in topology_of(plan).local_replicas(task):
            sums = [n for n in graph.nodes if n.op == COLLECTIVE and n.device == replica.device]
            assert {n.attrs["communication_hint"] for n in sums} == {b"nccl"}
            before = {n.name: ancestors(graph, [n.name]) for n in sums}
            sums.sort(key=lambda n: sum(other.name in before[n.name] for other in sums))
            assert all(a.name in before[b.name] for a, b in itertools.pairwise(sums))
            order[replica.rank] = [n.name.replace(f"replica_{replica.rank}/", "") for n in sums]
    assert len(order[0]) > 2
    assert order[0] == order[1] == order[2]


def test_a_sum_by_nccl_stays_in_one_piece(cases, monkeypatch):
    monkeypatch.setattr(collectives, "PIECE_BYTES", 64)
    case = cases.of("digits-mlp", "momentum")
    n_sums = {}
    for transport in ("nccl", "ring"):
        plan = gpu_plan(case, "all-reduce", (1, 1), transport=transport)
        assert len({node.group for node in plan.nodes} - {None}) == 1
        graph = run_passes(passes_of(plan, 0), case.step, topology_of(plan)).step.graph
        n_sums[transport] = sum(node.op == COLLECTIVE for node in graph.nodes)
    assert n_sums == {"nccl": 1, "ring": collectives.MAX_PIECES}


def test_owners_sums_are_not_for_nccl(cases):
    case = cases.of("digits-mlp", "momentum")
    plan = gpu_plan(case, "sharded-update", (1, 1))
    assert "nccl" not in {node.transport for node in plan.nodes}
    with pytest.raises(StrategyError, match="transport must be one of auto, tcp, ring, got 'nccl'"):
        gpu_plan(case, "sharded-update", (1, 1), transport="nccl")
