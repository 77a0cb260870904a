"""Owners under sharded updates, and the bytes that these move and hold."""

import pytest
from planning import slot, state, step_of, trainable

from strategies.plan.partitions import parts_of
from strategies.planner import payload_matrix
from strategies.registry import make_plan
from strategies.topology import Topology


def owned(name, *shape, **fields):
    axes = (0,) if fields.get("sparse") else tuple(range(len(shape)))
    return trainable(
        name,
        *shape,
        **{
            "apart": True,
            "apart_axes": axes,
            "partitionable_axes": axes,
            "read_before_update": True,
            **fields,
        },
    )


def plan(*variables, replicas=(1, 1), batch_size=24, strategy="sharded-update", **params):
    topology = Topology(replicas_per_task=replicas, batch_size=batch_size)
    return make_plan(strategy, {"min_bytes": 1, **params}, step_of(*variables), topology)


def sent(*variables, **fields):
    """[task i][task j] → bytes from i to j."""
    return payload_matrix(plan(*variables, **fields), step_of(*variables)).sent


def node_of(result, name):
    return next(node for node in result.nodes if node.variable == name)


def owners_of(result, name):
    return [part.owner for part in parts_of(node_of(result, name))]


def test_a_large_variable_has_a_part_for_every_replica_and_its_slots_are_cut_with_it():
    planned = plan(owned("w", 4, 9), slot("w_momentum", "w", 4, 9), replicas=(2, 1))
    assert node_of(planned, "w").partition.axis == 1
    assert node_of(planned, "w").partition.sizes == (3, 3, 3)
    assert sorted(owners_of(planned, "w")) == [0, 1, 2]
    assert owners_of(planned, "w_momentum") == owners_of(planned, "w")
    assert [p.group for p in parts_of(node_of(planned, "w"))] == [0, 0, 0]


@pytest.mark.parametrize(
    ("shape", "n", "axis"),
    [
        ((6, 12), 2, 0),  # equal parts along both
        ((5, 12), 2, 1),
        ((64, 2048), 3, 1),
        ((512, 2048), 3, 0),  # 171, 171 and 170 rows are as good as equal
        ((7, 5), 3, 0),  # the longest has the least difference
        ((5, 7), 3, 1),
    ],
)
def test_parts_lie_in_few_pieces_where_they_are_as_good_as_equal(shape, n, axis):
    assert node_of(plan(owned("w", *shape), replicas=(1,) * n), "w").partition.axis == axis


@pytest.mark.parametrize("shared", [True, False], ids=["one-bucket", "a-bucket-each"])
def test_owners_of_parts_follow_by_rank_and_own_as_much_all_the_same(shared):
    kernels = [owned(f"w{k}", 12, 64, apart_axes=(0,), readiness=k) for k in range(16)]
    planned = plan(*kernels, replicas=(1,) * 8, **({} if shared else {"bucket_bytes": 1}))
    in_all = [0] * 8
    for k in range(16):
        parts = parts_of(node_of(planned, f"w{k}"))
        owners = [part.owner for part in parts]
        assert owners == (sorted(owners) if shared else list(range(8)))
        for part in parts:
            in_all[part.owner] += part.shape[0]
    assert in_all == [16 * 12 // 8] * 8


def test_slots_are_cut_as_their_variable_is():
    planned = plan(owned("large", 99, 64), owned("w", 33, 64), slot("m", "w", 33, 64), replicas=(1, 1, 1))
    assert owners_of(planned, "w") == owners_of(planned, "m") == [0, 1, 2]
    assert [p.shape for p in parts_of(node_of(planned, "m"))] == [
        p.shape for p in parts_of(node_of(planned, "w"))
    ]


@pytest.mark.parametrize("strategy", ["sharded-update", "fully-sharded"])
def test_what_is_empty_has_no_owner(strategy):
    planned = plan(
        owned("w", 8, 4), owned("empty", 0, 4), owned("none", 0), strategy=strategy, bucket_bytes=1
    )
    for name in ("empty", "none"):
        node = node_of(planned, name)
        assert (node.owner, node.partition, node.gathered) == (None, None, False)
    assert owners_of(planned, "w") == [0, 1]


def test_small_variables_go_whole_to_whoever_owns_least():
    planned = plan(owned("a", 30), owned("b", 20), owned("c", 10), min_bytes=1000)
    assert [owners_of(planned, name) for name in "abc"] == [[0], [1], [1]]


def test_what_cannot_be_cut_is_whole():
    few_rows, scalar = owned("few", 2, 1), owned("scalar")
    together = owned("clipped", 8, 8, apart_axes=())
    counted = owned("counted", 8, 8)
    planned = plan(few_rows, scalar, together, counted, slot("steps", "counted"), replicas=(1, 1, 1))
    assert all(node.partition is None and node.owner is not None for node in planned.nodes)
    assert owners_of(planned, "steps") == owners_of(planned, "counted")


def test_what_other_updates_read_is_updated_by_all():
    planned = plan(owned("w", 8, 8), owned("tied", 8, apart=False), slot("m", "tied", 8), state("mean", 3))
    assert [owners_of(planned, name) for name in ("tied", "m", "mean")] == [[None]] * 3


def test_rows_that_no_single_replica_updates_go_to_all():
    table = owned("table", 8, 4, sparse=True, apart=False, apart_axes=())
    node = node_of(plan(table, transport="ring"), "table")
    assert (node.owner, node.group, node.transport) == (None, None, None)
    node = node_of(plan(table), "table")
    assert (node.owner, node.group, node.transport) == (None, 0, "tcp")


def test_with_shares_of_one_size_every_replica_sends_n_minus_1_over_n_twice():
    """`(N-1)/N * S` for the reduce-scatter, and the same again for the all-gather."""
    n, s = 3, 4 * 6 * 12
    variables = owned("w", 6, 12), slot("m", "w", 6, 12)
    planned = plan(*variables, replicas=(1,) * n, transport="ring")
    assert planned.payload_bytes_per_step == n * 2 * (n - 1) * s // n
    scattered, ring = s // n, (n - 1) * s // n
    assert payload_matrix(planned, step_of(*variables)).sent == (
        (0, scattered + ring, scattered),
        (scattered, 0, scattered + ring),
        (scattered + ring, scattered, 0),
    )
    # Through the workers' own ring, both go from each to the next.
    carried = sent(*variables, replicas=(1,) * n)
    assert carried == ((0, 2 * ring, 0), (0, 0, 2 * ring), (2 * ring, 0, 0))


def test_as_many_bytes_as_an_all_reduce_whatever_shares_are_like():
    variables = [owned(name, size) for name, size in zip("abcde", (50, 30, 20, 7, 1), strict=True)]
    for replicas in ((1, 1), (1, 1, 1), (2, 1), (1, 2, 1)):
        planned = plan(*variables, replicas=replicas, min_bytes=1000)
        reduced = make_plan(
            "all-reduce", {}, step_of(*variables), Topology(replicas_per_task=replicas, batch_size=24)
        )
        assert planned.payload_bytes_per_step == pytest.approx(reduced.payload_bytes_per_step, abs=9)


def test_padding_counts():
    """Shares of 30 and 20 floats travel as 30 each way, but through the workers' own ring."""
    matrix = sent(owned("a", 30), owned("b", 20), min_bytes=1000, transport="ring")
    assert matrix == ((0, 4 * 60), (4 * 60, 0))
    carried = sent(owned("a", 30), owned("b", 20), min_bytes=1000)
    assert carried == ((0, 4 * (20 + 30)), (4 * (30 + 20), 0))


def test_a_gradient_that_all_read_is_reduced_for_all():
    shared = plan(owned("w", 6, 12, gradient_shared=True), replicas=(1, 1, 1))
    assert node_of(shared, "w").whole_gradient
    s = 4 * 6 * 12
    assert shared.payload_bytes_per_step == 3 * (2 * 2 * s // 3 + 2 * s // 3)


def test_new_values_of_a_table_travel_dense_and_its_gradient_as_rows():
    table = owned("table", 50, 8, sparse=True, rows_per_example=3.0)
    planned = plan(table, batch_size=4)
    assert node_of(planned, "table").partition.sizes == (25, 25)
    rows, values = 2 * 3 * (4 * 8 + 8), 2 * 4 * 25 * 8
    assert planned.payload_bytes_per_step == 2 * (rows + 16) + values
    gathered = plan(table, batch_size=4, transport="ring")
    assert gathered.payload_bytes_per_step == 2 * (rows + 4) + values


def test_replicas_of_one_task_send_nothing():
    assert sent(owned("w", 8, 8), replicas=(4,)) == ((0,),)


@pytest.mark.parametrize("n", [2, 4])
def test_a_replica_has_all_variables_and_its_share_of_the_slots(n):
    variables = [owned("w", 8, 16), slot("m", "w", 8, 16), slot("v", "w", 8, 16), slot("iteration", None)]
    planned = plan(*variables, replicas=(1,) * n)
    size = 4 * 8 * 16
    assert planned.worker_bytes == size + 2 * size // n + 4


def test_buckets_are_filled_in_the_order_of_backward():
    planned = plan(owned("first", 8, 8, readiness=1), owned("last", 8, 8, readiness=0), bucket_bytes=256)
    assert {p.group for p in parts_of(node_of(planned, "last"))} == {0}
    assert {p.group for p in parts_of(node_of(planned, "first"))} == {1}


@pytest.mark.parametrize("n", [2, 4])
def test_fully_sharded_a_replica_has_its_share_of_everything_for_the_same_bytes(n):
    variables = [owned("w", 8, 16), slot("m", "w", 8, 16), slot("v", "w", 8, 16), slot("iteration", None)]
    planned = plan(*variables, replicas=(1,) * n, strategy="fully-sharded")
    assert [node.variable for node in planned.nodes if node.gathered] == ["w"]
    size = 4 * 8 * 16
    assert planned.worker_bytes == 3 * size // n + 4
    assert planned.traffic == plan(*variables, replicas=(1,) * n).traffic


def test_fully_sharded_all_keep_what_a_step_reads_after_its_update():
    late, tied = owned("late", 8, 8, read_before_update=False), owned("tied", 8, apart=False)
    table = owned("table", 50, 8, sparse=True, rows_per_example=3.0)
    planned = plan(owned("w", 8, 8), late, tied, table, strategy="fully-sharded")
    assert [node.variable for node in planned.nodes if node.gathered] == ["w", "table"]
    assert owners_of(planned, "late") in ([0, 1], [1, 0])
    assert any(
        note.startswith("whole on every replica") and note.endswith("late, tied") for note in planned.notes
    )
    assert any(
        note.startswith("whole table sent in every step") and "table" in note for note in planned.notes
    )
