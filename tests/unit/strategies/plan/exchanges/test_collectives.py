"""Flows of collectives: one for each message that the passes make."""

import pytest
from planning import state, step_of, trainable

from strategies.plan.schema import StatisticSummary
from strategies.planner import exchanges
from strategies.registry import make_plan
from strategies.topology import Topology

MIB = 1 << 20
STEP = step_of(
    trainable("bias", 10, readiness=0),
    trainable("kernel", 40, readiness=1),
    trainable("large", 9 * MIB // 4, readiness=2),
    state("mean", 5),
)
TABLE = trainable("table", 50, 8, sparse=True, rows_per_example=3.0)


def flows(strategy, step=STEP, replicas_per_task=(1, 1, 1), **params):
    topology = Topology(replicas_per_task=replicas_per_task, batch_size=24)
    return exchanges(make_plan(strategy, params, step, topology), step)


@pytest.mark.parametrize(
    ("transport", "carrier", "n_pieces"), [("tcp", "tcp", 1), ("ring", "collectives", 2)]
)
def test_small_values_of_a_bucket_are_one_message_and_a_large_one_is_alone(transport, carrier, n_pieces):
    small, large = flows("all-reduce", transport=transport)
    assert {flow.transport for flow in (small, large)} == {carrier}
    assert {(flow.op, flow.values, flow.n_members) for flow in (small, large)} == {("sum", "gradients", 3)}
    assert (small.variables, small.n_bytes, small.n_messages) == (("bias", "kernel", "mean"), 4 * 55, 1)
    assert (large.variables, large.n_bytes, large.n_messages) == (("large",), 9 * MIB, n_pieces)


def test_each_bucket_is_a_flow():
    assert [flow.variables for flow in flows("all-reduce", chunk_size=2)] == [
        ("bias", "mean"),
        ("kernel",),
        ("large",),
    ]


def test_tensorflow_sends_each_pack_as_one_message():
    (flow,) = flows("tf-multi-worker-mirrored")
    assert (flow.variables, flow.transport, flow.n_messages) == (
        ("bias", "kernel", "large"),
        "collectives",
        1,
    )


def test_leaders_alone_take_part_between_workers():
    assert {flow.n_members for flow in flows("hierarchical-all-reduce", replicas_per_task=(2, 2))} == {2}
    of_replicas = flows("all-reduce", replicas_per_task=(2, 2), transport="ring")
    assert {flow.n_members for flow in of_replicas} == {4}


def test_an_average_is_sent_once_in_its_period():
    small, large = flows("local-sgd", period=8)
    assert (small.values, small.period, small.n_bytes) == ("averages", 8, 4 * 55 / 8)
    assert (large.n_bytes, large.value_bytes, large.n_messages) == (9 * MIB / 8, 9 * MIB, 2)


def test_a_compressed_bucket_has_its_compressor_and_both_sizes():
    step = step_of(trainable("kernel", 64, 96), state("mean", 96))
    for name, options, n_rounds in (("powersgd", {"compressor_rank": 2}, 2), ("topk", {}, 1)):
        kernel = next(f for f in flows("all-reduce", step, compressor=name, **options) if f.compressor)
        assert (kernel.compressor.name, kernel.value_bytes) == (name, step.variables[0].bytes)
        assert kernel.n_bytes < kernel.value_bytes
        assert kernel.n_rounds == n_rounds


def test_rows_of_a_bucket_are_one_message_of_the_workers_own_ring():
    step = step_of(TABLE, TABLE.model_copy(update={"name": "other"}), trainable("bias", 10))
    carried = [f for f in flows("all-reduce", step) if f.op == "gather"]
    assert [f.variables for f in carried] == [("table", "other")]
    gathered = [f for f in flows("all-reduce", step, transport="ring") if f.op == "gather"]
    assert [f.variables for f in gathered] == [("table",), ("other",)]
    # Numbers of rows first, then rows and ids.
    assert {(f.n_rounds, f.n_messages, f.n_bytes) for f in gathered} == {(2, 2, 0.0)}


def test_a_rule_gathers_all_dense_gradients_as_one_vector():
    vector, *reduced = flows("robust-all-reduce")
    assert (vector.op, vector.variables, vector.n_messages) == ("gather", ("bias", "kernel", "large"), 1)
    assert [flow.variables for flow in reduced] == [("mean",)]


def test_statistics_of_one_level_are_sent_together():
    statistics = tuple(
        StatisticSummary(layer=layer, bytes=16, levels=levels)
        for layer, levels in (("one", (1, 2, 5, 6)), ("beside it", (1, 2, 5, 6)), ("after", (3, 4, 7, 8)))
    )
    step = STEP.model_copy(update={"statistics": statistics})
    sums = [f for f in flows("ps", step, sync_batch_norm=True) if f.values == "statistics"]
    together, alone = ("one", "beside it"), ("after",)
    assert [f.variables for f in sums] == [*(together,) * 2, *(alone,) * 2, *(together,) * 2, *(alone,) * 2]
    assert sum(f.n_bytes for f in sums) == 48
