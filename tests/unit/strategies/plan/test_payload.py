"""The closed formulas of payload: what tasks, and cores, send each other in a step."""

import pytest
from planning import slot, state, step_of, trainable

from strategies.errors import StrategyError
from strategies.planner import payload_matrix
from strategies.registry import make_plan, resolve
from strategies.topology import Topology

S = 4 * 1000
DENSE = step_of(
    trainable("a", 600, readiness=1),
    trainable("b", 400, readiness=0),
    slot("m/a", "a", 600),
    state("seed", 2, rule="per-replica"),
)


def plan(strategy, step, replicas_per_task, batch_size=24, **params):
    topology = Topology(replicas_per_task=replicas_per_task, batch_size=batch_size)
    return make_plan(strategy, params, step, topology)


def sent(strategy, step, replicas_per_task, batch_size=24, **params):
    """[task i][task j] → bytes from i to j."""
    return payload_matrix(plan(strategy, step, replicas_per_task, batch_size, **params), step).sent


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_a_ring_sends_2_n_minus_1_over_n_on_each_of_w_links(workers):
    """`2(N-1)/N * S` from each replica; with one replica each, every task sends to the next."""
    n_bytes = round(2 * (workers - 1) / workers * S)
    for i, row in enumerate(sent("all-reduce", DENSE, (1,) * workers)):
        assert row == tuple(n_bytes if j == (i + 1) % workers else 0 for j in range(workers))
    assert plan("all-reduce", DENSE, (1,) * workers).payload_bytes_per_step == workers * n_bytes


def test_a_ring_over_more_replicas_crosses_each_link_between_tasks_once():
    n_bytes = round(2 * 5 / 6 * S)
    matrix = sent("all-reduce", DENSE, (2, 2, 2), transport="ring")
    assert matrix == ((0, n_bytes, 0), (0, 0, n_bytes), (n_bytes, 0, 0))


def test_the_workers_own_ring_sends_as_much_however_many_replicas_there_are():
    expected = sent("all-reduce", DENSE, (1, 1, 1))
    assert sent("all-reduce", DENSE, (2, 2, 2), transport="tcp") == expected
    assert sent("all-reduce", DENSE, (4, 1, 2)) == expected


@pytest.mark.parametrize("replicas_per_task", [(1, 1, 1), (2, 2, 2), (4, 1, 2)])
def test_a_hierarchy_sends_as_much_as_one_replica_per_worker(replicas_per_task):
    """`2(W-1)/W * S` from each worker, however many replicas it has."""
    planned = plan("hierarchical-all-reduce", DENSE, replicas_per_task)
    expected = sent("all-reduce", DENSE, (1, 1, 1))
    assert sent("hierarchical-all-reduce", DENSE, replicas_per_task) == expected
    assert planned.payload_bytes_per_step == 3 * round(2 * 2 / 3 * S)
    assert planned.worker_bytes == plan("all-reduce", DENSE, replicas_per_task).worker_bytes


@pytest.mark.parametrize("params", [{"chunk_size": 1}, {"bucket_bytes": 100}])
def test_buckets_do_not_change_payload(params):
    expected = sent("all-reduce", DENSE, (1, 1))
    assert sent("all-reduce", DENSE, (1, 1), **params) == expected


@pytest.mark.parametrize(
    "strategy", ["ps", "ps-load-balancing", "all-reduce", "hierarchical-all-reduce", "none"]
)
def test_nothing_is_sent_within_a_task(strategy):
    assert sent(strategy, DENSE, (3,)) == ((0,),)


def test_without_communication_nothing_is_sent():
    assert plan("none", DENSE, (2, 2)).payload_bytes_per_step == 0


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_workers_pull_for_each_replica_and_push_once(replicas):
    matrix = sent("ps", DENSE, (1, replicas, replicas))
    assert matrix == ((0, replicas * S, replicas * S), (S, 0, 0), (S, 0, 0))


def test_a_row_is_pulled_for_every_id_and_pushed_for_each_or_once():
    """A table of 5 rows, which 12 examples of a worker look up twice each; ids are of 8 bytes."""
    table = trainable("table", 5, 3, sparse=True, crossings=1, rows_per_example=2.0)
    linear = table.model_copy(update={"linear_rows": True})
    for variable, knobs, duplicates, pushed in (
        (table, False, "kept", 24),
        (table, True, "merged", 5),
        (linear, False, "merged (linear)", 5),
        (linear, True, "merged", 5),
    ):
        planned = plan("ps", step_of(variable), (1, 1), merge_rows=knobs)
        matrix = payload_matrix(planned, step_of(variable)).sent
        assert matrix == ((0, 24 * 12), (24 * 8 + pushed * (12 + 8), 0))
        assert planned.sparse_duplicates == planned.nodes[0].sparse_duplicates == duplicates
        assert any(note.startswith("merge_rows:") for note in planned.notes) is (knobs and variable is table)


@pytest.mark.parametrize(
    ("strategy", "replicas_per_task", "duplicates"),
    [
        ("single", (1,), "kept"),
        ("none", (1, 1), "kept"),
        ("local-sgd", (1, 1), "kept"),
        ("tf-multi-worker-mirrored", (1, 1), "kept"),
        ("all-reduce", (1, 1), "merged (linear)"),
        ("robust-all-reduce", (1, 1, 1), "merged"),
        ("tpu-replicate", (1, 1), "merged"),
    ],
)
def test_rows_are_merged_where_they_travel_or_must_be(strategy, replicas_per_task, duplicates):
    table = trainable("table", 5, 3, sparse=True, rows_per_example=2.0, linear_rows=True)
    planned = plan(strategy, step_of(table), replicas_per_task)
    assert planned.sparse_duplicates == duplicates
    dense = plan(strategy, step_of(trainable("dense", 5, 3)), replicas_per_task)
    assert dense.sparse_duplicates is None


@pytest.mark.parametrize("strategy", ["robust-ps", "robust-all-reduce", "tpu-replicate"])
def test_strategies_that_must_merge_refuse_not_to(strategy):
    with pytest.raises(StrategyError, match="merge_rows must be true, got False; leave it out for true"):
        resolve(strategy, {"merge_rows": False})


def test_rows_of_a_narrow_type_are_pushed_in_that_of_accumulators():
    """Accumulators have no bfloat16, so pushed rows widen; without accumulators they keep their type."""
    table = trainable("table", 5, 3, dtype="bfloat16", sparse=True, rows_per_example=2.0)
    for params, row in (({}, 3 * 8), ({"staleness": 1}, 3 * 8), ({"sync": False}, 3 * 2)):
        matrix = sent("ps", step_of(table), (1, 1), **params)
        assert matrix == ((0, 24 * 3 * 2), (24 * 8 + 24 * (row + 8), 0))
    half = table.model_copy(update={"dtype": "half"})
    assert sent("ps", step_of(half), (1, 1))[1][0] == 24 * 8 + 24 * (3 * 2 + 8)


@pytest.mark.parametrize(("other", "width"), [("half", 4), ("double", 8)])
def test_a_rule_takes_all_gradients_of_a_worker_in_one_type(other, width):
    """Float, or double where one of them is double."""
    dense = trainable("dense", 50, dtype="half").model_copy(update={"bytes": 2 * 50})
    rows = trainable("rows", 5, 3, dtype="half", sparse=True, rows_per_example=2.0)
    step = step_of(dense, rows, trainable("other", dtype=other).model_copy(update={"bytes": 8}))
    vector = width * (50 + 1 + 5 * 3) + 5 * 8
    pushed = sent("robust-ps", step, (1, 1, 1))[1][0]
    assert pushed == vector + 16 * 8  # and the ids that 8 examples look up twice
    around = sent("robust-all-reduce", step, (1, 1, 1))[1][2]
    assert around == 2 * (vector + 4)  # and how many rows there are


def test_a_proxy_pulls_once_for_all_replicas():
    """Reads fall from R·S to S per worker; rows of sparse ones are pulled as before."""
    planned = plan("ps", DENSE, (2, 3, 1), local_proxy_variable=True)
    assert payload_matrix(planned, DENSE).sent == ((0, S, S), (S, 0, 0), (S, 0, 0))
    assert {n.variable for n in planned.nodes if n.proxy} == {"a", "b"}
    sparse = [sent("ps", step_of(TABLE), (1, 2), local_proxy_variable=proxy) for proxy in (False, True)]
    assert sparse[0] == sparse[1]


def test_what_replicas_read_on_a_server_is_pulled_whether_or_not_a_gradient_of_it_crosses():
    def with_more(**fields):
        more = trainable("more", 50, readiness=None, **fields)
        return sent("ps", step_of(*DENSE.variables, more), (1, 2))

    assert with_more(synced=False) == ((0, 2 * (S + 200)), (S, 0))
    assert with_more(synced=False, reads=0) == with_more(synced=False, only_read=True) == ((0, 2 * S), (S, 0))
    # A sum to which the forward pass only adds.
    assert with_more(kind="state", rule="sum", reads=0) == ((0, 2 * S), (S + 200, 0))


@pytest.mark.parametrize("params", [{"sync": False}, {"staleness": 3}, {"backup": 1}])
def test_who_waits_for_whom_moves_no_bytes(params):
    assert sent("ps", DENSE, (1, 2), **params) == sent("ps", DENSE, (1, 2))


def test_servers_on_all_workers_move_other_hosts_shares_only():
    planned = plan("ps-load-balancing", DENSE, (1, 1))
    a, b = 4 * 600, 4 * 400
    assert payload_matrix(planned, DENSE).sent == ((0, a + b), (a + b, 0))
    assert planned.server_bytes == (2 * a, b)


def test_state_merged_across_workers_counts_and_random_state_does_not():
    more = step_of(*DENSE.variables, state("mean", 50))
    assert plan("ps", more, (1, 1)).payload_bytes_per_step == 2 * (S + 200)
    assert plan("all-reduce", more, (1, 1)).payload_bytes_per_step == 2 * (S + 200)


TABLE = trainable("table", 50, 8, sparse=True, rows_per_example=3.0)
ROW, ID, LENGTH = 4 * 8, 8, 4


def test_a_sparse_all_gather_sends_padded_rows_ids_and_lengths():
    """In all N(N-1) * max_nnz * (value + index bytes) + lengths."""
    # Shards of 3, 2 and 2 examples: the longest has at most 9 rows.
    planned = plan("all-reduce", step_of(TABLE), (1, 1, 1), batch_size=7, transport="ring")
    assert planned.payload_bytes_per_step == 3 * 2 * (9 * (ROW + ID) + LENGTH)


def test_the_workers_own_ring_passes_rows_on_as_they_are():
    """Each worker sends those of all but the next one; a worker's replicas bring theirs as one."""
    # At most 9, 6 and 6 rows, and 9 and 12 of the same shards on two workers.
    one, two, three = (n * (ROW + ID) + 2 * 8 for n in (9, 6, 6))
    matrix = sent("all-reduce", step_of(TABLE), (1, 1, 1), batch_size=7)
    assert matrix == ((0, one + three, 0), (0, 0, one + two), (two + three, 0, 0))
    for strategy in ("all-reduce", "hierarchical-all-reduce"):
        matrix = sent(strategy, step_of(TABLE), (1, 2), batch_size=7)
        assert matrix == ((0, one), (12 * (ROW + ID) + 2 * 8, 0))


def test_a_sparse_hierarchy_gathers_a_workers_rows_as_one():
    # Shards of 2, 2, 2 and 1 examples: 6 on the first worker, which bring at most 18 rows.
    planned = plan("hierarchical-all-reduce", step_of(TABLE), (3, 1), batch_size=7, transport="ring")
    assert planned.payload_bytes_per_step == 2 * (18 * (ROW + ID) + LENGTH)


@pytest.mark.parametrize("period", [1, 3, 8])
def test_an_average_spreads_its_bytes_over_the_steps_of_its_period(period):
    """`2(N-1)/N * S / k` from each replica on average; variables are dense where gradients are rows."""
    matrix = sent("local-sgd", step_of(*DENSE.variables, TABLE), (1, 1, 1), period=period)
    n_bytes = round(2 * 2 / 3 * (S + TABLE.bytes) / period)
    assert matrix == ((0, n_bytes, 0), (0, 0, n_bytes), (n_bytes, 0, 0))


def test_what_replicas_add_up_travels_in_every_step():
    sums = step_of(*DENSE.variables, state("seen", 30, rule="sum"))
    assert plan("local-sgd", sums, (1, 1), period=10).payload_bytes_per_step == 2 * (S // 10 + 120)


def test_merged_rows_are_no_more_than_the_table_has():
    unknown = TABLE.model_copy(update={"rows_per_example": None})
    for transport, lengths in (("ring", LENGTH), ("tcp", 2 * 8)):
        for table, batch_size in ((TABLE, 1000), (unknown, 4)):
            planned = plan(
                "all-reduce",
                step_of(table),
                (1, 1),
                batch_size=batch_size,
                transport=transport,
                merge_rows=True,
            )
            assert planned.payload_bytes_per_step == 2 * (50 * (ROW + ID) + lengths)


def test_a_sparse_parameter_server_sends_rows_that_were_asked_for():
    matrix = payload_matrix(plan("ps", step_of(TABLE), (1, 1), batch_size=4), step_of(TABLE))
    rows = 2 * 3
    assert matrix.sent == ((0, rows * ROW), (rows * ID + rows * (ROW + ID), 0))
    assert matrix.pulled == ((0, rows * ROW), (0, 0))


# 10 floats, so that four replicas have parts of 3, 12 bytes.
STEP = step_of(trainable("w", 10, apart_axes=(0,)), slot("w/m", "w", 10))


def payload(replicas: tuple[int, ...], step=STEP, **params):
    return sent("tpu-replicate", step, replicas, batch_size=2 * sum(replicas), **params)


def test_whole_variables_are_summed_around_a_ring():
    # 2 · 3/4 · 40 bytes go from each replica to the next, which is another worker's once for each worker.
    assert payload((2, 2)) == ((0, 60), (60, 0))


def test_nothing_leaves_the_only_worker():
    assert payload((4,), reshard=True) == ((0,),)


def test_parts_are_scattered_to_their_owners_and_gathered_to_be_read():
    # Scattered: each of 2 replicas sends each of the 2 others its 12 bytes: 48. Gathered: w is read in each
    # of 2 steps, and after these w and its slot are put together, 3 · 12 bytes each: 36 + 72 / 2.
    assert payload((2, 2), reshard=True, steps_per_loop=2) == ((0, 48 + 72), (48 + 72, 0))


@pytest.mark.parametrize("own", [{"gradient_shared": True, "apart_axes": (0,)}, {"apart_axes": ()}])
def test_a_gradient_that_other_updates_or_other_elements_need_is_summed_whole(own):
    step = step_of(trainable("w", 10, **own), slot("w/m", "w", 10))
    assert payload((2, 2), step, reshard=True, steps_per_loop=2) == ((0, 60 + 72), (60 + 72, 0))


def test_it_must_be_apart_along_every_axis_that_has_parts():
    step = step_of(trainable("w", 5, 1, 2, apart_axes=(0,)), slot("w/m", "w", 5, 1, 2))
    assert payload((2, 2), step, reshard=True, steps_per_loop=2)[0][1] == 60 + 72


def test_past_eleven_replicas_sums_are_whole():
    # Parts of one float: 2 · 11/12 · 48 bytes around, and 11 · 4 to read, and twice that after one step.
    step = step_of(trainable("w", 12, apart_axes=(0,)), slot("w/m", "w", 12))
    assert payload((6, 6), step, reshard=True, steps_per_loop=1)[0][1] == 88 + 3 * 44


@pytest.mark.parametrize("shape", [(), (3,)])
def test_what_has_no_value_for_each_replica_stays_whole(shape):
    topology = Topology(replicas_per_task=(4,), batch_size=4)
    plan = make_plan("tpu-replicate", {"reshard": True}, step_of(trainable("w", *shape)), topology)
    assert [node.in_parts for node in plan.nodes] == [False]
