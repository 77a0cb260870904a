"""Into how many parts builders cut variables, and where the parts go."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning import slot, state, step_of, trainable

from strategies.builders.partitioned import near_equal, smallest_divisor, smallest_non_divisor
from strategies.errors import StrategyError
from strategies.ir.variable import part_name
from strategies.plan.partitions import cuts_of, parts_of
from strategies.plan.schema import Partition, Plan
from strategies.planner import payload_matrix
from strategies.registry import make_plan
from strategies.topology import Topology

TWO = Topology(replicas_per_task=(1, 1), batch_size=8)
THREE = Topology(replicas_per_task=(1, 1, 1), batch_size=9)


def cuttable(name, *shape, **fields):
    axes = (0,) if fields.get("sparse") else tuple(range(len(shape)))
    return trainable(name, *shape, partitionable_axes=axes, **fields)


def partition_of(plan: Plan, name: str) -> Partition | None:
    return next(node.partition for node in plan.nodes if node.variable == name)


@given(st.integers(2, 2000))
def test_the_smallest_divisor_divides_and_no_smaller_one_does(length):
    n = smallest_divisor(length)
    assert length % n == 0
    assert all(length % k for k in range(2, n))


@given(st.integers(3, 2000))
def test_the_smallest_non_divisor_does_not_divide_and_all_smaller_ones_do(length):
    n = smallest_non_divisor(length)
    assert length % n
    assert all(length % k == 0 for k in range(2, n))


@pytest.mark.parametrize("length", [0, 1])
def test_one_row_is_never_cut(length):
    assert smallest_divisor(length) is None
    assert smallest_non_divisor(length) is None


def test_two_rows_have_no_uneven_parts():
    assert smallest_non_divisor(2) is None


@given(st.integers(1, 500), st.integers(1, 50))
def test_near_equal_parts_fill_the_length(length, n):
    sizes = near_equal(length, n)
    assert (sum(sizes), len(sizes)) == (length, n)
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("strategy", "sizes"),
    [("partitioned-ps", (6, 6)), ("uneven-partitioned-ps", (3, 3, 2, 2, 2)), ("sharded-ps", (4, 4, 4))],
)
def test_sizes_and_slots(strategy, sizes):
    params = {"min_bytes": 1} if strategy == "sharded-ps" else {}
    step = step_of(cuttable("w", 12, 5), slot("w_momentum", "w", 12, 5), slot("w_count", "w"))
    plan = make_plan(strategy, params, step, THREE)
    assert partition_of(plan, "w").sizes == sizes
    assert partition_of(plan, "w_momentum") == partition_of(plan, "w")
    assert partition_of(plan, "w_count") is None
    assert sum(plan.server_bytes) == sum(v.bytes for v in step.variables)


def test_what_stays_whole():
    step = step_of(
        cuttable("scalar"),
        cuttable("one-row", 1, 4),
        trainable("in-control-flow", 8, 4),
        cuttable("prime", 97, 4),
        state("mean", 8),
        cuttable("cut", 8, 4),
    )
    plan = make_plan("partitioned-ps", {}, step, TWO)
    assert set(cuts_of(plan.nodes)) == {"cut"}
    assert set(cuts_of(make_plan("partitioned-ps", {"max_shards": 97}, step, TWO).nodes)) == {"cut", "prime"}


def test_small_variables_and_too_few_rows_are_not_sharded():
    step = step_of(cuttable("small", 8), cuttable("short", 2, 9000), cuttable("large", 3, 9000))
    assert set(cuts_of(make_plan("sharded-ps", {}, step, THREE).nodes)) == {"large"}


@pytest.mark.parametrize(("params", "n_parts"), [({}, 6), ({"max_shards": 4}, 4), ({"max_shards": 64}, 12)])
def test_a_variable_is_on_a_limited_number_of_servers_which_the_plan_notes(params, n_parts):
    twelve = Topology(replicas_per_task=(1,) * 12, batch_size=24)
    plan = make_plan("sharded-ps", params, step_of(cuttable("v", 60, 900), cuttable("w", 60, 900)), twelve)
    for name in ("v", "w"):
        destinations = partition_of(plan, name).destinations
        assert len(set(destinations)) == len(destinations) == n_parts
    assert sum(n_bytes > 0 for n_bytes in plan.server_bytes) == min(2 * n_parts, 12)
    notes = [note for note in plan.notes if note.startswith(f"each variable is on {n_parts} of 12 servers")]
    assert len(notes) == (n_parts < 12)


@pytest.mark.parametrize(
    ("strategy", "params", "whole", "reasons"),
    [
        (
            "partitioned-ps",
            {},
            "ps-load-balancing",
            ["97 parts of its length of 97", "more than max_shards=16"],
        ),
        ("uneven-partitioned-ps", {}, "ps-load-balancing", ["suits its length of 2 along axis 0"]),
        ("sharded-ps", {}, "ps-load-balancing", ["'kernel_1' and 4 more (smaller than min_bytes=16384)"]),
        ("sharded-ps", {"min_bytes": 1}, "ps-load-balancing", ["suits its length of 2 along axis 0"]),
        ("partitioned-all-reduce", {}, "all-reduce", ["97 parts of its length of 97"]),
        ("random-axis-partitioned-all-reduce", {}, "all-reduce", ["97 parts of its length of 97"]),
    ],
)
def test_a_strategy_that_cuts_nothing_says_so_once_with_reasons_and_what_to_choose(
    strategy, params, whole, reasons
):
    update = "node 'update/Mean' (Mean): it is neither elementwise nor row-local"
    shape = (2, 4) if "length of 2" in reasons[0] or "min_bytes" in reasons[0] else (97,)
    alike = [trainable(f"kernel_{k}", 8, cut_refusals={0: update}) for k in range(5)]
    step = step_of(cuttable("short", *shape), *alike, trainable("scalar"), state("mean", 8))
    (warning,) = make_plan(strategy, params, step, THREE).warnings
    assert warning.startswith(f"nothing is partitioned, every variable stays whole as under {whole}: ")
    assert warning.endswith(f"; choose {whole}")
    assert all(reason in warning for reason in reasons)
    if strategy != "sharded-ps" or params:
        assert f"'kernel_0', 'kernel_1', 'kernel_2' and 2 more ({update})" in warning
        assert "'scalar' (a scalar has no axis)" in warning
    assert not [note for note in make_plan(strategy, params, step, THREE).notes if "whole" in note]


@pytest.mark.parametrize("strategy", ["partitioned-ps", "sharded-update", "ps"])
def test_a_strategy_that_cuts_something_or_need_not_has_nothing_to_warn_of(strategy):
    step = step_of(cuttable("w", 12, 5) if strategy == "partitioned-ps" else trainable("w", 12, 5))
    assert make_plan(strategy, {}, step, TWO).warnings == ()
    assert make_plan(strategy, {}, step, Topology(replicas_per_task=(1,), batch_size=8)).warnings == ()


def test_servers_are_balanced_within_a_tenth_where_shapes_allow():
    shapes = [(512, 64), (64, 64), (64,), (1000, 16), (48, 10), (10,)]
    step = step_of(*(cuttable(f"v{i}", *shape) for i, shape in enumerate(shapes)))
    for strategy in ("partitioned-ps", "uneven-partitioned-ps", "sharded-ps"):
        for topology in (TWO, THREE):
            server_bytes = make_plan(strategy, {}, step, topology).server_bytes
            if (strategy, topology) != ("partitioned-ps", THREE):  # halves of the largest on three servers
                assert max(server_bytes) <= 1.1 * sum(server_bytes) / len(server_bytes), (
                    strategy,
                    server_bytes,
                )


def test_each_part_has_a_collective_of_its_own_and_whole_variables_share_one():
    step = step_of(
        cuttable("a", 4, 4, readiness=1), cuttable("b", 9, readiness=0), trainable("c", 5), state("m", 3)
    )
    plan = make_plan("partitioned-all-reduce", {}, step, TWO)
    groups = [g for node in plan.nodes for part in parts_of(node) for g in [part.group]]
    assert partition_of(plan, "b").groups == (1, 2, 3)
    assert partition_of(plan, "a").groups == (4, 5)
    assert groups.count(0) == 2
    assert len(set(groups)) == 6


def test_random_axes_repeat_with_their_seed_and_differ_between_seeds():
    step = step_of(*(cuttable(f"v{i}", 4, 6) for i in range(12)), cuttable("sparse", 8, 4, sparse=True))

    def axes(seed):
        plan = make_plan("random-axis-partitioned-all-reduce", {"seed": seed}, step, TWO)
        assert partition_of(plan, "sparse").axis == 0
        return [partition_of(plan, f"v{i}").axis for i in range(12)]

    assert axes(1) == axes(1)
    assert axes(1) != axes(2)
    assert set(axes(1)) == {0, 1}


def test_a_plan_with_parts_survives_json():
    step = step_of(cuttable("w", 12, 5), slot("w_momentum", "w", 12, 5))
    plan = make_plan("partitioned-ps", {}, step, TWO)
    assert Plan.model_validate_json(plan.model_dump_json()) == plan


@given(st.integers(0, 2), st.lists(st.integers(1, 5), min_size=2, max_size=4))
def test_parts_of_a_node_have_its_bytes_together(axis, sizes):
    shape = [3, 3, 3]
    shape[axis] = sum(sizes)
    plan = make_plan("ps", {}, step_of(cuttable("w", *shape)), TWO)
    destinations = tuple(range(len(sizes)))
    cut = Partition(axis=axis, sizes=tuple(sizes), destinations=destinations)
    parts = parts_of(plan.nodes[0].model_copy(update={"partition": cut}))
    assert sum(p.bytes for p in parts) == plan.nodes[0].bytes
    assert [p.shape[axis] for p in parts] == sizes
    assert [p.variable for p in parts] == [part_name("w", k) for k in range(len(sizes))]
    assert [p.destination for p in parts] == list(destinations)


@pytest.mark.parametrize(
    ("cut", "says"),
    [
        (Partition(axis=2, sizes=(6, 6)), "partition.axis must be an axis of shape"),
        (Partition(axis=0, sizes=(6, 6), destinations=(0,)), "needs one for each of 2 sizes, got 1"),
    ],
)
def test_an_edited_plan_that_cannot_be_is_refused(cut, says):
    plan = make_plan("ps", {}, step_of(cuttable("w", 12, 5)), TWO)
    with pytest.raises(StrategyError, match=says):
        parts_of(plan.nodes[0].model_copy(update={"partition": cut}))


def test_payload_of_parts_is_that_of_the_whole():
    """Two servers with halves: each worker pulls and pushes the other's half."""
    dense = step_of(cuttable("w", 12, 5))
    plan = make_plan("partitioned-ps", {}, dense, TWO)
    whole = dense.variables[0].bytes
    assert payload_matrix(plan, dense).sent == ((0, whole), (whole, 0))
    sparse = step_of(cuttable("t", 40, 4, sparse=True, rows_per_example=2.0))
    one = make_plan("ps", {}, sparse, TWO).payload_bytes_per_step
    assert make_plan("partitioned-ps", {}, sparse, TWO).payload_bytes_per_step == one
