"""Costs of plans on TPU slices, by simulation: the known formulas of their collectives."""

import pytest
from planning import slot, state, step_of, trainable

from harness.prediction.slices import slice_cost
from strategies.errors import StrategyError
from strategies.registry import make_plan
from strategies.topology import Topology
from strategies.tpu_slices import parse_slice

EIGHT = parse_slice("v4:2x2x2")
N, LINKS_BYTES_PER_S = 8, 3 * 50e9
_CUT = {"partitionable_axes": (0,), "apart": True, "apart_axes": (0,)}
DENSE = step_of(
    trainable("kernel", 1024, 64, readiness=1, **_CUT),
    trainable("other", 2048, 8, readiness=0, **_CUT),
    slot("kernel/m", "kernel", 1024, 64),
    slot("other/m", "other", 2048, 8),
)
GRADIENT_BYTES = 4 * (1024 * 64 + 2048 * 8)


def cost(strategy, step=DENSE, on=EIGHT, replicas_per_task=(4, 4), batch_size=64, **params):
    topology = Topology(replicas_per_task=replicas_per_task, batch_size=batch_size)
    plan = make_plan(strategy, params, step, topology)
    return slice_cost(on, plan, step)


@pytest.mark.parametrize("strategy", ["all-reduce", "hierarchical-all-reduce"])
def test_an_all_reduce_takes_two_halves(strategy):
    slice_cost = cost(strategy)
    assert slice_cost.collectives.all_reduce_bytes == GRADIENT_BYTES
    assert slice_cost.seconds["sum"] == pytest.approx(2 * (N - 1) / N * GRADIENT_BYTES / LINKS_BYTES_PER_S)
    assert slice_cost.seconds == {"sum": slice_cost.total_s}


@pytest.mark.parametrize("strategy", ["sharded-update", "fully-sharded"])
def test_a_sharded_update_takes_as_long_as_an_all_reduce(strategy):
    """The same bytes on the links; what it saves is memory."""
    slice_cost = cost(strategy, min_bytes=1)
    assert set(slice_cost.seconds) == {"scatter", "gather"}
    assert (slice_cost.collectives.reduce_scatter_bytes, slice_cost.collectives.all_gather_bytes) == (
        GRADIENT_BYTES,
        GRADIENT_BYTES,
    )
    half_s = pytest.approx((N - 1) / N * GRADIENT_BYTES / LINKS_BYTES_PER_S)
    assert slice_cost.seconds == {"scatter": half_s, "gather": half_s}
    assert slice_cost.total_s == pytest.approx(cost("all-reduce").total_s)


def test_a_sharded_update_keeps_an_nth_of_the_slots():
    topology = Topology(replicas_per_task=(4, 4), batch_size=64)
    all_slots, own_slots = (
        make_plan(name, params, DENSE, topology).worker_bytes - GRADIENT_BYTES
        for name, params in (("all-reduce", {}), ("sharded-update", {"min_bytes": 1}))
    )
    assert (all_slots, own_slots) == (GRADIENT_BYTES, GRADIENT_BYTES // N)


def test_gradients_that_others_read_are_summed_for_all():
    step = step_of(*(v.model_copy(update={"gradient_shared": True}) for v in DENSE.variables))
    slice_cost = cost("sharded-update", step, min_bytes=1)
    assert slice_cost.seconds["sum"] == pytest.approx(cost("all-reduce").total_s)
    assert "scatter" not in slice_cost.seconds
    assert slice_cost.collectives.all_gather_bytes == GRADIENT_BYTES


def test_each_crossing_of_a_gradient_counts_and_so_does_shared_state():
    step = step_of(trainable("w", 1000, crossings=2), state("mean", 50), state("seed", 2, rule="per-replica"))
    assert cost("all-reduce", step).collectives.all_reduce_bytes == 2 * 4000 + 200


def test_an_average_is_spread_over_its_period():
    table = trainable("table", 50, 8, sparse=True, rows_per_example=3.0)
    slice_cost = cost("local-sgd", step_of(*DENSE.variables, table), period=4)
    assert slice_cost.collectives.all_reduce_bytes == (GRADIENT_BYTES + 4 * 50 * 8) / 4
    assert not slice_cost.collectives.left_out


def test_encodings_are_added_up_or_gathered():
    halves = cost("all-reduce", compressor="bf16")
    assert halves.seconds["sum"] == pytest.approx(cost("all-reduce").total_s / 2)
    signs = cost("all-reduce", step_of(trainable("w", 3200, 100)), compressor="signsgd-ef").collectives
    assert (signs.all_reduce_bytes, signs.all_gather_bytes) == (0, N * (4 + 320_000 / 8))


def test_what_does_not_travel_by_collectives_is_named():
    table = trainable("table", 50, 8, sparse=True, rows_per_example=3.0)
    step = step_of(*DENSE.variables, table)
    assert cost("all-reduce", step).collectives.left_out == ("table",)
    assert cost("all-reduce", step).seconds == cost("all-reduce").seconds
    served = cost("ps", step)
    assert set(served.collectives.left_out) >= {"kernel", "other", "table"}
    assert served.seconds == {}


def test_dense_gradients_of_a_table_count():
    table = trainable("table", 50, 8, sparse=True, rows_per_example=3.0, crossings=2, dense_crossings=1)
    collectives = cost("all-reduce", step_of(table)).collectives
    assert (collectives.all_reduce_bytes, collectives.left_out) == (4 * 50 * 8, ("table",))


def test_without_communication_it_costs_nothing():
    slice_cost = cost("none")
    assert (slice_cost.total_s, slice_cost.collectives.left_out) == (0, ())
    alone = cost("single", on=parse_slice("v5e:1x1"), replicas_per_task=(1,))
    assert alone.total_s == 0


def test_two_devices_of_a_chip_share_its_links():
    """16 replicas on 8 chips send what 8 on as many chips do."""
    sixteen = cost("all-reduce", on=parse_slice("v7x:2x2x2"), replicas_per_task=(8, 8))
    assert sixteen.total_s == pytest.approx(2 * (N - 1) / N * GRADIENT_BYTES / (3 * 100e9))


def test_another_number_of_replicas_is_refused():
    with pytest.raises(StrategyError, match="must have a device for each replica, got 8 of v4:2x2x2 for 4"):
        cost("all-reduce", replicas_per_task=(4,))


def test_exchanges_of_a_loop_step_are_simulated():
    assert cost("tpu-replicate").seconds == pytest.approx(cost("all-reduce").seconds)


def test_a_pod_of_thousands_of_chips_is_simulated():
    pod = parse_slice("v4:16x16x16")
    many = cost("all-reduce", on=pod, replicas_per_task=(4,) * 1024, batch_size=4096)
    assert many.total_s == pytest.approx(2 * GRADIENT_BYTES / (6 * 50e9), rel=1e-3)
