"""Flows of a plan are the messages that its graphs really send."""

from collections import Counter

import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from crossings import crossings
from matrix import PARTITIONED

from harness.verification.worker.in_process import programs_of
from strategies.plan.node_rules import is_owned
from strategies.planner import exchanges

OPERATIONS = {"sum": "CollectiveReduceV2", "scatter": "CollectiveAllToAllV2", "gather": "CollectiveGatherV2"}


def flows_by(case, plan, transport):
    return [flow for flow in exchanges(plan, case.summary) if flow.transport == transport]


@pytest.mark.parametrize(
    ("model", "strategy", "params"),
    [
        ("digits-cnn", "all-reduce", {}),
        ("digits-cnn", "all-reduce", {"chunk_size": 3}),
        ("wide-mlp", "all-reduce", {}),
        ("wide-mlp", "all-reduce", {"compressor": "bf16"}),
        ("wide-mlp", "all-reduce", {"compressor": "topk"}),
        ("wide-mlp", "all-reduce", {"compressor": "powersgd"}),
        ("wide-mlp", "partitioned-all-reduce", {}),
        ("word-lm", "all-reduce", {}),
        ("word-lm", "sharded-update", {}),
        ("digits-cnn", "sharded-update", {}),
        ("wide-mlp", "sharded-update", {}),
        ("wide-mlp", "fully-sharded", {"min_bytes": 1}),
        ("wide-mlp", "hierarchical-all-reduce", {}),
    ],
    ids=str,
)
def test_the_workers_own_ring_carries_the_flows_one_by_one(cases, model, strategy, params):
    case = cases.of(model, "momentum")
    plan = case.plan(strategy, (2, 1), **params)
    predicted = Counter()
    for flow in flows_by(case, plan, "tcp"):
        # Rows are one transfer, which sends their lengths first.
        rows = flow.op == "gather" and flow.values == "gradients" and not flow.n_bytes
        n_stages = 2 if flow.compressor is not None and flow.compressor.name == "powersgd" else 1
        predicted["concatenate" if rows else flow.op] += n_stages * flow.n_messages
    program = programs_of(case.step, plan)[0]
    assert predicted == Counter(transfer.kind for transfer in program.step.transfers)


@pytest.mark.parametrize(
    ("model", "strategy", "params"),
    [
        ("digits-cnn", "all-reduce", {}),
        ("wide-mlp", "all-reduce", {}),
        ("wide-mlp", "all-reduce", {"chunk_size": 1}),
        ("wide-mlp", "all-reduce", {"compressor": "fp16"}),
        ("wide-mlp", "partitioned-all-reduce", {}),
        ("word-lm", "all-reduce", {}),
        ("wide-mlp", "hierarchical-all-reduce", {}),
        ("wide-mlp", "robust-all-reduce", {"rule": "mean"}),
        ("digits-cnn", "local-sgd", {}),
        ("digits-cnn", "all-reduce", {"sync_batch_norm": True}),
    ],
    ids=str,
)
def test_tensorflow_s_collectives_are_the_messages_of_the_flows(cases, model, strategy, params):
    case = cases.of(model, "momentum")
    knobs = {} if strategy in ("local-sgd", "robust-all-reduce") else {"transport": "ring"}
    assert_messages_of_flows(case, case.plan(strategy, (1, 1), **knobs, **params))


@pytest.mark.parametrize("replicas", [(1, 1), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("strategy", ["sharded-update", "fully-sharded"])
def test_whole_variables_and_parts_of_owners_cross_in_the_messages_of_the_flows(cases, strategy, replicas):
    case = cases.of("wide-mlp", "momentum")
    plan = case.plan(strategy, replicas, transport="ring", min_bytes=1000)
    owned = {node.partition is not None for node in plan.nodes if is_owned(node)}
    assert owned == {True, False}
    assert_messages_of_flows(case, plan)
    assert_messages_of_flows(case, with_buckets(plan))


def with_buckets(plan):
    """The plan with parts of each variable in several buckets."""

    def edited(node):
        partition = node.partition
        if partition is None or partition.groups is None:
            return node
        groups = tuple(partition.groups[0] + k % 2 for k in range(len(partition.groups)))
        return node.model_copy(update={"partition": partition.model_copy(update={"groups": groups})})

    return plan.model_copy(update={"nodes": tuple(map(edited, plan.nodes))})


def assert_messages_of_flows(case, plan):
    predicted = Counter()
    for flow in flows_by(case, plan, "collectives"):
        rows = flow.op == "gather" and not flow.n_bytes
        # Lengths precede rows.
        predicted[OPERATIONS[flow.op]] += flow.n_messages + (1 if rows else 0)
    graph = tf.compat.v1.GraphDef.FromString(programs_of(case.step, plan)[0].graph_def)
    assert predicted == Counter(node.op for node in graph.node if node.op.startswith("Collective"))


@pytest.mark.parametrize("params", [{}, {"local_proxy_variable": True}], ids=str)
@pytest.mark.parametrize("model", ["digits-cnn", "wide-mlp"])
@pytest.mark.parametrize("strategy", ["ps", "ps-load-balancing", "partitioned-ps", "sharded-ps"])
def test_servers_send_and_receive_the_flows_one_by_one(cases, strategy, model, params):
    case = cases.of(model, "momentum")
    plan = case.plan(strategy, (1, 2), **params, **PARTITIONED.get(strategy, {}))
    served = {"pull": Counter(), "push": Counter()}
    for flow in flows_by(case, plan, "grpc"):
        for server in flow.links.servers.tolist():
            # Each replica of the other worker pulls, which has one or two; without proxies the flow has most.
            n_replicas = plan.replicas_per_task[1 - server]
            served[flow.op][server] += min(flow.n_messages, n_replicas)
    # Counters of optimizers and learning rates are read across too; they are no part of a payload.
    shared = {v.handle for v in case.step.variables if v.kind == "slot" and v.slot_of is None}
    sent = [c for c in crossings(case, plan) if c.n_bytes and not shared & set(c.variables)]
    assert Counter(c.sender for c in sent if c.variables) == served["pull"]
    assert Counter(c.receiver for c in sent if not c.variables) == served["push"]
