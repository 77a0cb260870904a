from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning import slot, state, step_of, trainable

from strategies.builders.all_reduce import LARGE_ROWS_BYTES, bucketed
from strategies.builders.parameter_server import load_balancing, one_server
from strategies.errors import StrategyError, UnsupportedError
from strategies.plan.node_rules import check_nodes
from strategies.plan.partitions import server_bytes, worker_bytes
from strategies.plan.strategy import independent
from strategies.planner import topology_of
from strategies.registry import make_plan
from strategies.topology import Topology

THREE = Topology(replicas_per_task=(1, 1, 1), batch_size=6)
MODEL = step_of(
    trainable("big", 100),
    slot("m/big", "big", 100),
    trainable("small", 10),
    slot("m/small", "small", 10),
    slot("iteration", None),
    state("mean", 5),
    state("seed", 2, rule="per-replica"),
    trainable("unused", 7, synced=False, readiness=None),
)


GPUS = Topology(replicas_per_task=(2, 1), batch_size=6, device="gpu")
SHARED = replace(GPUS, shares_devices=True)


def placed(nodes):
    return {node.variable: node.destination for node in nodes}


def synchronizers(nodes):
    return {node.variable: node.synchronizer for node in nodes}


def test_one_server_holds_all_but_random_state():
    nodes = one_server(MODEL, THREE, {})
    assert placed(nodes) == {v.name: None if v.name == "seed" else 0 for v in MODEL.variables}
    assert {n for n, s in synchronizers(nodes).items() if s == "ps"} == {"big", "small", "mean"}
    assert server_bytes(nodes, THREE) == (sum(v.bytes for v in MODEL.variables if v.name != "seed"), 0, 0)
    assert worker_bytes(nodes) == 8


def test_load_balancing_takes_the_emptiest_server_and_slots_follow():
    assert placed(load_balancing(MODEL, THREE, {})) == {
        "big": 0,
        "m/big": 0,
        "small": 1,
        "m/small": 1,
        "iteration": 0,
        "mean": 2,
        "seed": None,
        "unused": 0,
    }


def test_each_replica_keeps_what_no_step_changes_and_its_slots():
    trainables = [
        trainable(name, 50, synced=False, readiness=None, only_read=True) for name in ("base", "m/base")
    ]
    step = step_of(
        *MODEL.variables, trainables[0], trainables[1].model_copy(update={"kind": "slot", "slot_of": "base"})
    )
    for layout in (one_server, load_balancing):
        nodes = layout(step, THREE, {})
        assert placed(nodes) == {**placed(layout(MODEL, THREE, {})), "base": None, "m/base": None}
        assert server_bytes(nodes, THREE) == server_bytes(layout(MODEL, THREE, {}), THREE)
        assert worker_bytes(nodes) == 8 + 2 * 4 * 50
        check_nodes(nodes, step, THREE, where="plan")


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=30), st.integers(1, 6))
def test_servers_differ_by_one_variable_at_most(lengths, n_tasks):
    topology = Topology(replicas_per_task=(1,) * n_tasks, batch_size=n_tasks)
    step = step_of(*(trainable(f"v{i}", length) for i, length in enumerate(lengths)))
    task_bytes = server_bytes(load_balancing(step, topology, {}), topology)
    assert sum(task_bytes) == 4 * sum(lengths)
    assert max(task_bytes) - min(task_bytes) <= 4 * max(lengths)


def test_independent_replicas_own_everything():
    nodes = independent(MODEL, THREE, {})
    assert set(synchronizers(nodes).values()) == {"none"}
    assert worker_bytes(nodes) == sum(v.bytes for v in MODEL.variables)


def buckets(step, **params):
    results = {}
    for node in bucketed(step, THREE, params):
        if node.group is not None:
            results.setdefault(node.group, set()).add(node.variable)
    assert sorted(results) == list(range(len(results)))
    return [results[i] for i in sorted(results)]


READY = step_of(
    trainable("first_layer", 10, readiness=3),
    trainable("second_layer", 30, readiness=2),
    trainable("table", 50, 2, sparse=True, readiness=1),
    trainable("logits", 20, readiness=0),
    slot("m/logits", "logits", 20),
    state("mean", 5),
)


def test_buckets_fill_in_the_order_of_backward_after_new_state():
    one_each = [{"mean"}, {"logits"}, {"table"}, {"second_layer"}, {"first_layer"}]
    assert buckets(READY, chunk_size=1) == one_each
    assert buckets(READY, chunk_size=3) == [{"mean", "logits", "table"}, {"second_layer", "first_layer"}]
    assert buckets(READY, chunk_size=128) == [{"mean", "logits", "table", "second_layer", "first_layer"}]
    dense = [bucket for bucket in one_each if bucket != {"table"}]
    assert buckets(READY, chunk_size=1, transport="ring") == dense


def test_buckets_by_bytes_hold_no_more_than_asked_unless_one_variable_does():
    # 20, 80, 120 and 40 bytes.
    dense = step_of(*(v for v in READY.variables if not v.sparse))
    assert buckets(dense, bucket_bytes=250) == [{"mean", "logits", "second_layer"}, {"first_layer"}]
    assert buckets(dense, bucket_bytes=259) == buckets(dense, bucket_bytes=250)
    assert buckets(dense, bucket_bytes=260) == [{"mean", "logits", "second_layer", "first_layer"}]
    assert len(buckets(dense, bucket_bytes=1)) == 4


def test_half_a_bucket_travels_alone_and_parts_no_small_ones_around_it():
    dense = step_of(*(v for v in READY.variables if not v.sparse))
    apart = [{"logits"}, {"second_layer"}, {"mean", "first_layer"}]
    assert buckets(dense, bucket_bytes=160) == apart
    assert buckets(dense, bucket_bytes=100, chunk_size=128) == apart


def test_rows_count_with_the_most_that_a_worker_may_bring():
    """Two examples on each worker, of a row of 8 bytes and its id each; the table has 400."""
    n_bytes = 2 * (8 + 8)
    table = trainable("table", 50, 2, sparse=True, readiness=0, rows_per_example=1.0)
    step = step_of(table, trainable("w", 5, readiness=1), trainable("v", 5, readiness=2))
    assert buckets(step, bucket_bytes=n_bytes + 40) == [{"table", "w", "v"}]
    assert buckets(step, bucket_bytes=n_bytes + 39) == [{"table", "w"}, {"v"}]


def test_rows_that_may_be_many_wait_for_nothing_else():
    def table(name, readiness, n_rows):
        size = LARGE_ROWS_BYTES // 512
        return trainable(
            name, 10 * size, 126, sparse=True, readiness=readiness, rows_per_example=n_rows * size / 2
        )

    step = step_of(
        trainable("last", 5, readiness=4),
        trainable("middle", 5, readiness=2),
        table("large", 1, 1),
        table("smaller", 3, 0.9),
        trainable("first", 5, readiness=0),
    )
    assert buckets(step, chunk_size=128) == [{"large"}, {"first", "middle", "smaller", "last"}]


def test_slots_are_in_no_bucket_and_neither_are_rows_that_tensorflow_gathers():
    nodes = {node.variable: node for node in bucketed(READY, THREE, {"chunk_size": 128, "transport": "ring"})}
    assert nodes["table"].synchronizer == "all-reduce"
    assert (nodes["table"].group, nodes["table"].transport) == (None, None)
    assert (nodes["m/logits"].synchronizer, nodes["m/logits"].group) == ("none", None)
    assert all(node.destination is None for node in nodes.values())


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=20),
    st.integers(1, 2000),
    st.randoms(use_true_random=False),
)
def test_every_gradient_is_in_one_bucket_of_at_most_the_limit(lengths, limit, random):
    order = list(range(len(lengths)))
    random.shuffle(order)
    step = step_of(
        *(trainable(f"v{i}", n, readiness=r) for i, (n, r) in enumerate(zip(lengths, order, strict=True)))
    )
    groups = buckets(step, bucket_bytes=limit)
    assert sorted(name for bucket in groups for name in bucket) == sorted(v.name for v in step.variables)
    sizes = {v.name: v.bytes for v in step.variables}
    assert all(len(b) == 1 or sum(sizes[v] for v in b) <= limit for b in groups)


def transports(plan):
    return {node.transport for node in plan.nodes} - {None}


@pytest.mark.parametrize(
    "strategy", ["all-reduce", "hierarchical-all-reduce", "partitioned-all-reduce", "parallax"]
)
def test_between_replicas_that_share_a_gpu_tensorflows_ring_takes_the_place_of_nccl(strategy):
    own, shared = (make_plan(strategy, {}, MODEL, topology) for topology in (GPUS, SHARED))
    assert (transports(own), transports(shared)) == ({"nccl"}, {"ring"})
    (note,) = set(shared.notes) - set(own.notes)
    assert note.startswith("replicas share a GPU, which NCCL does not support")
    assert topology_of(shared).shares_devices
    assert not topology_of(own).shares_devices


@pytest.mark.parametrize(
    ("strategy", "params"),
    [("all-reduce", {"transport": "ring"}), ("all-reduce", {"transport": "tcp"}), ("ps", {})],
)
def test_a_plan_that_has_the_transport_it_was_asked_for_says_nothing_of_sharing(strategy, params):
    own, shared = (make_plan(strategy, params, MODEL, topology) for topology in (GPUS, SHARED))
    assert (own.nodes, own.notes) == (shared.nodes, shared.notes)


def test_nccl_between_replicas_that_share_a_gpu_is_refused():
    need = "nccl needs a GPU for each replica"
    with pytest.raises(UnsupportedError, match=f"transport={need}, got replicas that share one; use auto"):
        make_plan("all-reduce", {"transport": "nccl"}, MODEL, SHARED)
    nodes = make_plan("all-reduce", {"transport": "nccl"}, MODEL, GPUS).nodes
    with pytest.raises(StrategyError, match=f"transport {need}, got replicas that share one; use auto"):
        check_nodes(nodes, MODEL, SHARED, where="plan")
