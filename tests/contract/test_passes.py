"""Rules for every pass, on a dense, a sparse, and a BatchNorm and dropout capture."""

import itertools
from itertools import count

import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from strategies.ir.graph_rules import verify
from strategies.ir.text import to_text
from strategies.ir.traversal import ancestors, prune
from strategies.passes.collectives import buckets
from strategies.passes.collectives.all_reduce import DenseAllReduce, SparseAllGather
from strategies.passes.collectives.batch_norm import SyncStatistics
from strategies.passes.collectives.leader_reduce import LeaderBroadcast, LeaderReduce
from strategies.passes.collectives.local_sgd import AverageVariables
from strategies.passes.collectives.tcp_ring import TcpAllReduce
from strategies.passes.parameter_server.synchronous import ParameterServerSync
from strategies.passes.pass_order import PASSES, passes_of
from strategies.passes.replicate.contributions import LocalReduce
from strategies.passes.task_plan import TaskPlan
from strategies.passes.update.merge_rows import MergeRows
from strategies.plan.faults import fault_of
from strategies.planner import topology_of
from strategies.tf_bridge.graphdef import graphdef_from_graph

FAULT = "fault"
"""In place of a parameter: the kind of fault that both workers have."""
CAPTURES = [("digits-mlp", "adamw-clipped"), ("word-lm", "adagrad"), ("digits-cnn", "momentum")]
# Pass → strategies and parameters that some capture needs it for: every pass that there is.
ASKED: dict[str, list[tuple[str, dict[str, object]]]] = {
    "merge-rows": [("all-reduce", {"merge_rows": True}), ("ps", {"merge_rows": True})],
    "fuse-updates": [("all-reduce", {})],
    "hoist-reads": [("all-reduce", {})],
    "partition": [("partitioned-ps", {}), ("partitioned-all-reduce", {})],
    "replicate": [("all-reduce", {}), ("ps", {})],
    "accumulate": [("all-reduce", {"accumulate": 2}), ("ps", {"accumulate": 2})],
    "sync-statistics": [("all-reduce", {"sync_batch_norm": True})],
    "average-variables": [("local-sgd", {})],
    "proxy-variables": [("ps-load-balancing", {"local_proxy_variable": True})],
    "worker-mean": [("ps", {"sync": False})],
    "leader-reduce": [("hierarchical-all-reduce", {})],
    "local-reduce": [("all-reduce", {}), ("hierarchical-all-reduce", {}), ("local-sgd", {}), ("ps", {})],
    # Of both workers: each has a pass of its own for its fault.
    "inject-faults": [("ps", {FAULT: "gaussian"}), ("all-reduce", {FAULT: "label-flip"})],
    "gather-variables": [("fully-sharded", {"min_bytes": 1}), ("fully-sharded", {"transport": "ring"})],
    "shard-updates": [("sharded-update", {}), ("fully-sharded", {})],
    # Over the workers' own transport there is nothing left for the collectives.
    "dense-reduce-scatter": [("sharded-update", {"transport": "ring"})],
    "aggregate-gathered": [("robust-all-reduce", {"rule": "median", "pre": "bucketing"})],
    "replicated-servers": [("robust-ps", {"servers": 2})],
    "sparse-all-gather": [("all-reduce", {"transport": "ring"})],
    "compressed-all-reduce": [("all-reduce", {"compressor": "fp16-ef"})],
    "rounded-gradients": [("all-reduce", {"compressor": "bf16-ef"})],
    "compressed-tcp-all-reduce": [
        ("all-reduce", {"compressor": "topk"}),
        ("all-reduce", {"compressor": "powersgd"}),
    ],
    "tcp-all-reduce": [("all-reduce", {}), ("sharded-update", {})],
    "dense-all-reduce": [("all-reduce", {"transport": "ring"})],
    "leader-broadcast": [("hierarchical-all-reduce", {})],
    "separate-collectives": [("parallax", {}), ("ps", {"sync_batch_norm": True})],
    "compressed-push": [("ps", {"compressor": "fp16-ef"})],
    "pack-pushes": [("ps-load-balancing", {}), ("ps", {"sync": False})],
    "async-updates": [("ps", {"sync": False})],
    "semi-sync-ps": [("ps", {"staleness": 1}), ("ps", {"backup": 1})],
    "sync-ps": [("ps", {})],
    "broadcast-update-values": [("ps", {})],
    "placement": [("ps-load-balancing", {})],
    "pack-pulls": [("ps-load-balancing", {}), ("partitioned-ps", {})],
}
# Those that only some captures need: with rows of ids, statistics of batches, variables that can be cut, or
# without a norm over all gradients, which every replica needs the sums for.
OF_SOME = (
    "merge-rows",
    "sync-statistics",
    "separate-collectives",
    "partition",
    "proxy-variables",
    "dense-reduce-scatter",
)


TURNS = count()


def plan_of(case, strategy, params):
    """On replicas that have an example for each micro-batch; servers of copies have one each."""
    fault = params.get(FAULT)
    values = {name: value for name, value in params.items() if name != FAULT}
    few = {"accumulate": (2, 1), "servers": (1, 1)}
    replicas = next((few[name] for name in few if name in values), (2, 2))
    plan = case.plan(strategy, replicas, **values)
    if fault is None:
        return plan
    knobs = {"classes": 10} if fault == "label-flip" else {}
    faults = (fault_of({"worker": worker, "kind": fault, **knobs}, seed=0) for worker in (0, 1))
    return plan.model_copy(update={"faults": tuple(faults)})


def task_needs(name, plan):
    """Return True if any task of a plan needs a pass."""
    return any(rewrite.name == name for task in (0, 1) for rewrite in passes_of(plan, task))


def id_of(row):
    capture, name, strategy, params, task = row
    return "-".join(
        [*capture, name, strategy, *(f"{key}={value}" for key, value in params.items()), str(task)]
    )


def rows():
    """Each pass on both tasks, on one capture after the other; on all where only some need it."""
    for name, all_asked in ASKED.items():
        for strategy, params in all_asked:
            for task in (0, 1):
                turn = next(TURNS) % len(CAPTURES)
                for capture in CAPTURES if name in OF_SOME else CAPTURES[turn : turn + 1]:
                    yield capture, name, strategy, params, task


def text_of(step):
    """All of a step as text."""
    return to_text(step.graph) + repr([getattr(step, f) for f in step.__slots__ if f != "graph"])


@pytest.mark.parametrize("row", rows(), ids=id_of)
def test_a_pass_is_pure_deterministic_and_leaves_a_sound_graph(cases, row):
    capture, name, strategy, params, task = row
    case = cases.of(*capture)
    plan = plan_of(case, strategy, params)
    topology = topology_of(plan)
    step = case.step
    passes = passes_of(plan, task)
    if name in OF_SOME and name not in {rewrite.name for rewrite in passes}:
        return
    for rewrite in passes:
        if rewrite.name == name:
            break
        step = rewrite.apply(step, topology)
    assert rewrite.name == name
    before = text_of(step)
    first, second = rewrite.apply(step, topology), rewrite.apply(step, topology)
    assert text_of(step) == before
    assert text_of(first) == text_of(second)
    if first is not step:
        assert text_of(first) != before
    verify(first.graph)
    assert {*first.roots()} <= set(first.graph.by_name)
    verify(prune(first.graph, first.roots()))
    with tf.Graph().as_default():
        tf.compat.v1.import_graph_def(graphdef_from_graph(first.graph), name="")


def test_every_pass_has_rows_and_some_capture_needs_it(cases):
    assert list(ASKED) == [rewrite.name for rewrite in PASSES]
    captured = [cases.of(*capture) for capture in CAPTURES]
    for name, all_asked in ASKED.items():
        for row in all_asked:
            plans = [plan_of(case, *row) for case in captured]
            needed = [task_needs(name, plan) for plan in plans]
            assert all(needed) if name not in OF_SOME else any(needed), (name, row)


def nothing_to_do(case):
    """Passes with no sparse gradient, one task, no weight or bucket, merged reads, devices everywhere."""
    dense = case("digits-mlp", "momentum")
    two = dense.plan("ps", (2,))
    topology = topology_of(two)
    fuse, hoist, replicate, combine, *_ = passes_of(two, 0)
    plan = TaskPlan(plan=two, task=0)
    yield MergeRows(plan=plan), dense.step, topology
    fused = fuse.apply(dense.step, topology)
    yield fuse, fused, topology
    hoisted = hoist.apply(fused, topology)
    yield hoist, hoisted, topology
    combined = combine.apply(replicate.apply(hoisted, topology), topology)
    yield combine, combined, topology
    yield ParameterServerSync(plan=plan), combined, topology
    yield SparseAllGather(plan=plan), combined, topology
    sparse_only = topology_of(dense.plan("all-reduce", (1, 1)))
    yield DenseAllReduce(plan=plan), combined, sparse_only
    yield TcpAllReduce(plan=plan), combined, sparse_only
    yield LocalReduce(plan=plan), combined, topology
    yield SyncStatistics(plan=plan), replicate.apply(hoisted, topology), topology
    yield AverageVariables(plan=plan), hoisted, topology
    shared = topology_of(dense.plan("hierarchical-all-reduce", (1, 1)))
    yield LeaderReduce(plan=plan), combined, shared
    broadcast = LeaderBroadcast(plan=plan).apply(combined, topology)
    yield LeaderBroadcast(plan=plan), broadcast, topology
    place = passes_of(two, 0)[-1]
    yield place, place.apply(combined, topology), topology


def test_the_same_object_comes_back_when_there_is_nothing_to_do(cases):
    for rewrite, step, topology in nothing_to_do(cases.of):
        assert rewrite.apply(step, topology) is step, rewrite.name


@pytest.mark.parametrize("capture", CAPTURES, ids="-".join)
def test_both_tasks_agree_on_accumulators_queues_and_collective_keys(cases, capture):
    """Names by which tasks meet: shared names with their devices, and as many collectives."""
    case = cases.of(*capture)
    meet = ("ConditionalAccumulator", "SparseConditionalAccumulator", "FIFOQueueV2")
    for strategy in ("ps-load-balancing", "all-reduce"):
        plan = case.plan(strategy, (2, 1))
        topology = topology_of(plan)
        results = []
        for task in range(2):
            step = case.step
            for rewrite in passes_of(plan, task):
                step = rewrite.apply(step, topology)
            nodes = prune(step.graph, step.roots()).nodes
            shared = {(n.attrs["shared_name"], n.op, n.device) for n in nodes if n.op in meet}
            members = [n for n in nodes if n.op.startswith("Collective")]
            results.append((shared, len(members) / len(topology.local_replicas(task)), step.transfers))
        assert results[0] == results[1]
        assert any(results[0])


def after_passes(case, plan):
    step = case.step
    for rewrite in passes_of(plan, 0):
        step = rewrite.apply(step, topology_of(plan))
    return step


@pytest.mark.parametrize("compressor", [None, "topk"])
def test_large_gradients_of_a_bucket_travel_as_backward_makes_them_ready(cases, monkeypatch, compressor):
    monkeypatch.setattr(buckets, "LARGE_BYTES", 1)
    case = cases.of("digits-mlp", "momentum")
    params = {} if compressor is None else {"compressor": compressor}
    step = after_passes(case, case.plan("all-reduce", (1, 1), **params))
    ready = sorted(case.step.readiness, key=case.step.readiness.__getitem__)
    assert [name for t in step.transfers for name in ready if f"/{name}/" in t.name] == ready


def test_collectives_in_a_row_follow_backward(cases, monkeypatch):
    monkeypatch.setattr(buckets, "LARGE_BYTES", 1)
    case = cases.of("digits-mlp", "momentum")
    plan = case.plan("all-reduce", (1, 1), transport="ring")
    nodes = (node.model_copy(update={"transport": node.transport and "nccl"}) for node in plan.nodes)
    step = after_passes(case, plan.model_copy(update={"nodes": tuple(nodes)}))
    ready = sorted(case.step.readiness, key=case.step.readiness.__getitem__)
    row = [node for node in step.graph.nodes if node.op == "CollectiveReduceV2"]
    assert [name for node in row for name in ready if f"/{name}/" in node.name] == ready
    for before, node in itertools.pairwise(row):
        assert before.name in ancestors(step.graph, [node.name])
