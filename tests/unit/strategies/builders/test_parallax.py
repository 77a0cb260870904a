import pytest
from planning import slot, state, step_of, trainable

from strategies.errors import StrategyError
from strategies.planner import payload_matrix
from strategies.registry import make_plan, resolve
from strategies.topology import Topology

TWO = Topology(replicas_per_task=(1, 2), batch_size=6)
TABLE = {"sparse": True, "rows_per_example": 2.0}
MIXED = step_of(
    trainable("table", 40, 4, readiness=3, **TABLE),
    slot("m/table", "table", 40, 4),
    trainable("other_table", 10, 4, readiness=2, **TABLE),
    trainable("kernel", 9, 5, readiness=1),
    slot("m/kernel", "kernel", 9, 5),
    trainable("bias", 5, readiness=0),
    slot("iteration", None),
    state("mean", 5),
    state("seed", 2, rule="per-replica"),
    trainable("unused", 7, synced=False, readiness=None),
)
DENSE = step_of(*(v for v in MIXED.variables if "table" not in v.name))


def plan(params=None, step=MIXED, topology=TWO):
    return make_plan("parallax", params or {}, step, topology)


def test_sparse_variables_and_their_slots_are_served_and_the_rest_is_reduced():
    nodes = {n.variable: n for n in plan().nodes}
    assert [*nodes] == [v.name for v in MIXED.variables]
    assert {n for n, node in nodes.items() if node.synchronizer == "ps"} == {"table", "other_table"}
    assert {n: node.destination for n, node in nodes.items() if node.destination is not None} == {
        "table": 0,
        "m/table": 0,
        "other_table": 1,
    }
    assert {n for n, node in nodes.items() if node.group is not None} == {"kernel", "bias", "mean"}
    assert not any(node.proxy for node in nodes.values())
    assert {node.transport for node in nodes.values()} == {None, "auto"}


def test_buckets_hold_chunk_size_variables():
    groups = {n.variable: n.group for n in plan({"chunk_size": 1}).nodes if n.group is not None}
    assert groups == {"mean": 0, "bias": 1, "kernel": 2}


def test_without_sparse_gradients_it_is_all_reduce():
    assert plan(step=DENSE).nodes == make_plan("all-reduce", {}, DENSE, TWO).nodes
    reduced = make_plan("all-reduce", {"transport": "ring"}, MIXED, TWO)
    assert plan().payload_bytes_per_step < reduced.payload_bytes_per_step


def test_payload_is_that_of_both_kinds_together():
    sparse = step_of(*(v for v in MIXED.variables if "table" in v.name))
    dense = payload_matrix(make_plan("all-reduce", {"transport": "ring"}, DENSE, TWO), DENSE).sent
    served = payload_matrix(make_plan("ps-load-balancing", {}, sparse, TWO), sparse).sent
    expected = tuple(
        tuple(a + b for a, b in zip(*rows, strict=True)) for rows in zip(dense, served, strict=True)
    )
    assert payload_matrix(plan(), MIXED).sent == expected
    assert plan().server_bytes == (2 * 640, 160)
    assert plan().worker_bytes == sum(v.bytes for v in DENSE.variables)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"sync": False}, "'parallax': sync must be true, got False; leave it out for true"),
        ({"staleness": 2}, "'parallax': staleness must be 0, got 2; leave it out for 0"),
        ({"backup": 1}, "unknown parameter 'backup'"),
        ({"local_proxy_variable": True}, "unknown parameter 'local_proxy_variable'"),
    ],
)
def test_what_collectives_do_not_allow(params, message):
    with pytest.raises(StrategyError, match=message) as raised:
        resolve("parallax", params)
    assert "\n" not in str(raised.value)
