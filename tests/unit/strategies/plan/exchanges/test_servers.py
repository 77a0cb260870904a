"""Flows between servers and workers: small values packed, servers that hold the same variables together."""

import pytest
from planning import slot, step_of, trainable

from strategies.passes.parameter_server import packed_messages
from strategies.plan.exchanges import servers
from strategies.planner import exchanges
from strategies.registry import make_plan
from strategies.topology import Topology

LARGE = 1 << 16
"""Floats of a variable that shares no message."""
STEP = step_of(
    trainable("a", 600),
    trainable("b", 400),
    trainable("large", LARGE),
    slot("m", "a", 600),
)
TABLE = trainable("table", 50, 8, sparse=True, rows_per_example=3.0)


def flows(strategy, step=STEP, replicas_per_task=(1, 1, 1), **params):
    topology = Topology(replicas_per_task=replicas_per_task, batch_size=24)
    return exchanges(make_plan(strategy, params, step, topology), step)


def said(flow):
    return flow.op, flow.values, flow.variables, flow.links.servers.tolist()


def test_limits_of_messages_are_those_of_the_passes():
    assert servers.SMALL_BYTES == packed_messages.SMALL_BYTES
    assert servers._PACKED == packed_messages._PUSHED


def test_small_values_of_a_server_are_one_message_each_way():
    assert [said(flow) for flow in flows("ps")] == [
        ("pull", "read values", ("a", "b"), [0]),
        ("push", "gradients", ("a", "b"), [0]),
        ("pull", "read values", ("large",), [0]),
        ("push", "gradients", ("large",), [0]),
    ]
    assert {(flow.transport, flow.n_messages) for flow in flows("ps")} == {("grpc", 1)}


def test_each_replica_pulls_a_message_of_its_own_unless_it_has_a_proxy():
    def n_pulls(**params):
        return {f.n_messages for f in flows("ps", replicas_per_task=(1, 3), **params) if f.op == "pull"}

    assert (n_pulls(), n_pulls(local_proxy_variable=True)) == ({3}, {1})


def test_servers_of_other_variables_have_flows_of_their_own():
    pulls = [said(flow) for flow in flows("ps-load-balancing") if flow.op == "pull"]
    assert pulls == [
        ("pull", "read values", ("a",), [0]),
        ("pull", "read values", ("b",), [1]),
        ("pull", "read values", ("large",), [2]),
    ]


@pytest.mark.parametrize("n_tasks", [4, 16])
def test_servers_of_parts_of_the_same_variables_share_a_flow(n_tasks):
    cut = [
        trainable(name, 400, 4, partitionable_axes=(0,), readiness=place)
        for place, name in enumerate(("one", "two", "three"))
    ]
    packed = flows("sharded-ps", step_of(*cut), (1,) * n_tasks, min_bytes=1, max_shards=n_tasks)
    assert [said(flow) for flow in packed] == [
        ("pull", "read values", ("one", "two", "three"), list(range(n_tasks))),
        ("push", "gradients", ("one", "two", "three"), list(range(n_tasks))),
    ]


def test_rows_are_looked_up_by_ids_and_their_gradients_pushed():
    ids, rows, gradients = flows("ps", step_of(TABLE))
    assert said(ids) == ("push", "ids", ("table",), [0])
    assert said(rows) == ("pull", "read values", ("table",), [0])
    assert said(gradients) == ("push", "gradients", ("table",), [0])
    # 8 examples of a worker look up 3 rows each.
    assert (ids.value_bytes, rows.value_bytes, gradients.value_bytes) == (24 * 8, 24 * 32, 24 * 40)


def test_a_rule_takes_a_worker_s_gradients_as_one_vector():
    (vector,) = (flow for flow in flows("robust-ps") if flow.op == "push")
    assert vector.variables == ("a", "b", "large")
    copies = flows("robust-ps", replicas_per_task=(1,) * 5, servers=2)
    assert {tuple(flow.links.servers.tolist()) for flow in copies} == {(0, 1)}


def test_an_encoded_gradient_is_sent_alone():
    step = step_of(trainable("kernel", 64, 96), trainable("bias", 96), trainable("other", 9))
    pushes = {f.variables: f.compressor for f in flows("ps", step, compressor="powersgd") if f.op == "push"}
    assert pushes.keys() == {("kernel",), ("bias", "other")}
    assert pushes["kernel",].name == "powersgd"
    assert pushes["bias", "other"] is None
